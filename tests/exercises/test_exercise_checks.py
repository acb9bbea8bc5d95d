"""`regard.exercises.check`: a file in a process of its own, and what is told of it."""

import json

import pytest
from answers import filled_in

from regard import exercises
from regard.errors import InputError
from regard.exercises import ExerciseReport, check, find

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

PROJECTIONS = "q = x @ w_q.T\nk = x @ w_k\nv = x @ w_v.T\nreturn q, k, v"


@pytest.fixture
def write(tmp_path):
    """Writes what a learner did for an exercise; the path."""

    def written(name, code):
        path = tmp_path / find(name).file_name
        path.write_text(filled_in(find(name), code))
        return path

    return written


def test_the_step_the_cause_the_line_and_the_numbers(write):
    report = check(write("05", PROJECTIONS))
    assert (report.verdict, report.step, report.exit_code, bool(report)) == ("wrong", "k", 1, False)
    (cause,) = report.causes
    assert (cause.id, cause.location.text) == ("untransposed", "k = x @ w_k")
    told = str(report)
    assert "05_projections.py:" in told
    assert "what should come out" in told
    assert "-0.1469   -0.3038" in told
    assert "x @ w_k.T" not in told  # the solution is not told
    assert "A hint: regard exercise 05 --hint" in told


def test_a_report_survives_json(write):
    report = check(write("05", PROJECTIONS))
    assert ExerciseReport.from_json(report.to_json()) == report
    assert json.loads(json.dumps(report.to_dict()))["causes"][0]["id"] == "untransposed"
    assert report.to_dict()["ok"] is False
    assert repr(report) == "<ExerciseReport 05 projections: wrong, untransposed>"


def test_a_right_answer_is_right(write):
    report = check(write("05", PROJECTIONS.replace("w_k", "w_k.T")))
    assert (report.verdict, report.exit_code, report.ok) == ("right", 0, True)
    assert "all 3 calls" in str(report)


def test_a_stub_is_told_kindly_and_without_running_it(tmp_path):
    path = exercises.write("05", tmp_path)
    path.write_text(path.read_text() + "\nraise SystemExit(7)\n")
    report = check(path)
    assert (report.verdict, report.exit_code) == ("not filled in yet", 3)
    assert "put your code in the place" in str(report)


def test_a_part_that_still_raises_the_stubs_error_is_not_filled_in(write):
    report = check(write("06", 'if len(q):\n    raise NotImplementedError("later")\nreturn q'))
    assert report.verdict == "not filled in yet"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("import os\nos._exit(0)", "ended with exit code 0 and no answer"),
        ("return torch.zeros(2**40)", "asked for more than"),
    ],
)
def test_code_that_ends_its_process_is_undetermined(write, code, reason):
    report = check(write("06", code))
    assert (report.verdict, report.exit_code) == ("undetermined", 3)
    assert reason in report.reasons[0]


@pytest.mark.more
def test_code_that_never_ends_is_stopped_with_its_line(write):
    report = check(write("06", "while True:\n    pass"), timeout=1.0)
    assert report.verdict == "undetermined"
    assert "did not end within 1 s; it was at" in report.reasons[0]


def test_a_file_that_cannot_be_imported_is_refused_with_its_line(write):
    path = write("06", "return q @ k.T")
    path.write_text(path.read_text().replace("import math", "import math\nimport no_such_library"))
    with pytest.raises(InputError, match=r"06_scores.py:3: importing it raises ModuleNotFoundError"):
        check(path)


def test_a_file_without_the_function_is_refused(write):
    path = write("06", "return q @ k.T")
    path.write_text(path.read_text().replace("def scores", "def my_scores"))
    with pytest.raises(InputError, match="has no scores; it has my_scores"):
        check(path)


def test_a_file_of_another_exercise_is_refused(write):
    with pytest.raises(InputError, match="is the file of exercise 06 scores, not of 05 projections"):
        check(write("06", "return q @ k.T"), "05")


def test_a_file_without_a_marker_needs_the_exercises_name(write):
    path = write("06", "return q @ k.T")
    path.write_text(path.read_text().split("\n", 1)[1])
    with pytest.raises(InputError, match="name the exercise"):
        check(path)
    assert check(path, "scores").verdict == "right"


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        check(tmp_path / "05_projections.py")


def test_findings_that_compare_nothing_are_not_right(write):
    """Code that forges its answer cannot say how many calls there were and be right with none."""
    code = "import regard.exercises.checking.examination as e\ne.PROBLEMS = {}\nreturn q"
    assert check(write("06", code)).verdict != "right"
