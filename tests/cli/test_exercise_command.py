"""`regard exercise`: what the command lists, writes, refuses and prints. Its verdicts are for tests/exercises/."""

import itertools
import json
import re

import pytest

from regard.exercises import EXERCISES
from regard.exercises.report import ExerciseReport
from terminals import Stream, printed, refusal

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

STUB = '    raise NotImplementedError("your code here")'


@pytest.fixture
def scores(here, command):
    """The file of exercise 06, with a mistake."""
    assert command("exercise", "06")[0] == 0
    path = here / "06_scores.py"
    path.write_text(path.read_text().replace(STUB, "    return k @ q.T"))
    return path


def test_the_list_has_every_exercise_and_the_files_that_are_here(here, command, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    command("exercise", "05", "--out", "05_projections.py")
    out = printed(command, "exercise")
    rows = out.splitlines()[2:22]
    for each, row in zip(EXERCISES, rows, strict=True):
        assert row.split()[:2] == [f"{each.number:02d}", each.slug]
        assert each.title in row
    assert rows[4].rstrip().endswith("05_projections.py (to fill in)")
    assert not [row for row in (*rows[:4], *rows[5:]) if ".py" in row]


def test_the_list_as_json(here, command):
    listed = json.loads(printed(command, "exercise", "--json", "-"))
    assert [(each["number"], each["slug"]) for each in listed] == [(e.number, e.slug) for e in EXERCISES]


def test_a_file_is_written_with_the_statement_and_what_to_do_next(here, command):
    out = printed(command, "exercise", "projections")
    text = (here / "05_projections.py").read_text()
    assert STUB in text
    assert "0.7621   -0.0428" in text
    assert "0.7621   -0.0428" in out
    assert "regard exercise 05 --check\n" in out


def test_a_file_is_written_elsewhere_and_never_over_another(here, command):
    (here / "mine").mkdir()
    assert "regard exercise 05 --check mine/05_projections.py" in printed(command, "exercise", "5", "--out", "mine")
    assert "is there already, and is not overwritten" in refusal(command, "exercise", "5", "--out", "mine")


def test_the_file_that_was_written_says_kindly_that_it_is_not_filled_in(here, command):
    command("exercise", "05")
    code, out, err = command("exercise", "05", "--check")
    assert (code, err) == (3, "")
    assert out.startswith("exercise 05 projections: not filled in yet\n")
    assert "hint" in out


def test_both_commands_say_the_same_of_a_file(scores, command):
    code, out, err = command("exercise", "06", "--check")
    assert (code, err) == (1, "")
    assert "scores-transposed (in scores)" in out
    assert re.search(r"06_scores.py:\d+: return k @ q.T", out)
    assert "on the course's numbers:" in out
    assert command("check", "06_scores.py") == (code, out, err)
    assert command("exercise", "scores", "--check", str(scores)) == (code, out, err)


def test_a_report_is_written_as_json_and_as_annotations(scores, command):
    code, out, _ = command("exercise", "06", "--check", "--json", "-")
    report = ExerciseReport.from_json(out)
    assert (code, report.verdict) == (1, "wrong")
    assert ExerciseReport.from_json(command("check", "06_scores.py", "--format", "json")[1]) == report
    _, out, _ = command("check", "06_scores.py", "--format", "github")
    assert re.search(r"^::error file=06_scores.py,line=\d+,title=scores%3A scores-transposed", out, re.MULTILINE)


def test_a_name_in_the_file_is_checked_in_the_general_way(scores, command):
    """FILE:NAME is what it is for every other file: it takes a function of q and k for no attention."""
    assert not command("check", "06_scores.py:scores")[1].startswith("exercise")


def test_a_right_answer_ends_with_0(scores, command):
    scores.write_text(scores.read_text().replace("k @ q.T", "q @ k.T"))
    assert printed(command, "check", "06_scores.py").startswith("exercise 06 scores: right\n")


def test_hints_come_in_three_steps(here, command):
    hints = [command("exercise", "06", "--hint", *step)[1] for step in ((), ("2",), ("3",))]
    assert len(set(hints)) == 3
    assert hints[0].startswith("Hint 1 of 3")
    assert "regard exercise 06 --hint 2" in hints[0]
    assert "--hint" not in hints[2]


def test_a_class_is_a_table_and_csv(scores, command, here):
    (here / "results" / "ada").mkdir(parents=True)
    scores.rename(here / "results" / "ada" / "06_scores.py")
    (here / "results" / "06_=1+1.py").write_text("import no_such_library\n")
    out = printed(command, "exercise", "--class", "results", "--csv", "table.csv")
    assert "scores-transposed" in out
    assert out.endswith("2 submissions of 2 students: 1 undetermined, 1 wrong\n")
    table = (here / "table.csv").read_text()
    assert table.startswith("student,exercise,verdict,step,cause,line,message,file\n'=1+1,06 scores,undetermined,")
    assert command("exercise", "--class", "results", "--csv", "-")[1] == table
    assert len(json.loads(command("exercise", "--class", "results", "--json", "-")[1])["rows"]) == 2


def test_on_a_terminal_a_class_that_takes_long_shows_progress(scores, command, here, monkeypatch):
    """By a clock that moves on by two seconds whenever somebody looks at it."""
    stream = Stream(terminal=True, encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.monotonic", itertools.count(0.0, 2.0).__next__)
    code, out, _ = command("exercise", "--class", here, "--timeout", "10000")
    assert (code, "scores-transposed" in out) == (0, True)
    stream.flush()
    shown = stream.buffer.getvalue().decode()
    assert "checking" in shown
    assert "100%" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["21"], "there is no exercise '21'"),
        (["06", "--check"], "06_scores.py is not here: regard exercise 06 writes it"),
        (["06", "--check", "mine.py"], "mine.py: no such file"),
        (["06", "--hint", "4"], "there is no hint 4: they are 1 to 3"),
        (["06", "--hint", "two"], "--hint two: it is 1, 2 or 3"),
        (["06", "mine.py"], "a file is checked with --check"),
        (["06", "--check", "--hint"], "give one of them"),
        (["--check"], "name the exercise"),
        (["--csv", "-"], "--csv is for the table of --class"),
        (["--class", "."], "has no submissions"),
        (["--class", "none"], "no such folder"),
        (["06", "--class", "."], "leave out NAME"),
        (["06", "--timeout", "0"], "--timeout 0: give a number of seconds above 0"),
        (["06", "--memory", "0"], "--memory 0: give a number of GiB above 0"),
        (["06", "--out", "none/06.py"], "cannot write 'none/06.py'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(arguments, message, here, command):
    assert message in refusal(command, "exercise", *arguments)
