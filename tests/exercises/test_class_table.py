"""`regard.exercises.check_class`: a folder of submissions, of which some do what they should not."""

import csv
import io

import pytest
from answers import filled_in

from regard.errors import InputError
from regard.exercises import ClassTable, SubmissionRow, check_class, find
from regard.exercises.class_table import submissions

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


def _submit(path, name, code):
    path.parent.mkdir(exist_ok=True)
    path.write_text(filled_in(find(name), code))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The table of a class, and what was told while it was made."""
    folder = tmp_path_factory.mktemp("results")
    _submit(folder / "ada" / "06_scores.py", "06", "return q @ k.T")
    _submit(folder / "ada" / "07_scale.py", "07", "return q @ k.T")
    _submit(folder / "06_bob.py", "06", "return k @ q.T")
    _submit(folder / "06_eve.py", "06", "import os\nos._exit(0)")
    (folder / "06_zoe.py").write_text("import no_such_library\n")
    (folder / "ada" / "notes.py").write_text("print('mine')\n")
    (folder / "ada" / "__pycache__").mkdir()
    (folder / "results.txt").write_text("not a submission")
    told = []
    made = check_class(folder, on_progress=lambda *numbers: told.append(numbers))
    return made, told


def test_every_submission_is_a_row_whatever_it_does(table):
    rows = {(row.student, row.exercise): row for row in table[0].rows}
    assert len(table[0].rows) == len(rows) == 6
    assert rows["ada", "06 scores"].verdict == "right"
    wrong = rows["ada", "07 scale"]
    assert (wrong.verdict, wrong.step, wrong.cause) == ("wrong", "scaled", "no-scale")
    assert wrong.line.endswith(": return q @ k.T")
    assert rows["bob", "06 scores"].cause == "scores-transposed"
    assert "exit code 0 and no answer" in rows["eve", "06 scores"].message
    assert "no_such_library" in rows["zoe", "06 scores"].message
    assert "tells the exercise" in rows["ada", ""].message
    assert [rows[name, "06 scores"].verdict for name in ("eve", "zoe")] == ["undetermined"] * 2


def test_progress_is_told_from_the_first_to_the_last(table):
    assert table[1] == [(done, 6) for done in range(7)]


def test_the_table_is_read_back_from_csv(table):
    rows = list(csv.DictReader(io.StringIO(table[0].to_csv())))
    assert rows == [vars(row) for row in table[0].rows]
    assert rows == table[0].to_dict()["rows"]


def test_the_summary_counts_students_and_verdicts(table):
    assert str(table[0]) == "6 submissions of 4 students: 1 right, 3 undetermined, 2 wrong"


@pytest.mark.more
def test_a_submission_that_never_ends_does_not_end_the_table(tmp_path):
    _submit(tmp_path / "06_ada.py", "06", "while True:\n    pass")
    _submit(tmp_path / "06_bob.py", "06", "return q @ k.T")
    ada, bob = check_class(tmp_path, timeout=1.0).rows
    assert "did not end within 1 s; it was at" in ada.message
    assert (ada.verdict, bob.verdict) == ("undetermined", "right")


@pytest.mark.parametrize("cell", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", " =1"])
def test_no_cell_is_a_formula(cell):
    table = ClassTable((SubmissionRow(cell, "", "right", "", "", "", cell, cell),))
    (row,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert row["student"] == row["message"] == row["file"] == f"'{cell}"


def test_students_and_exercises_are_read_off_both_layouts(tmp_path):
    _submit(tmp_path / "ada" / "answer.py", "09", "return v")  # the marker tells it
    (tmp_path / "ada" / "5.py").write_text("")
    (tmp_path / "12 bob smith.py").write_text("")
    (tmp_path / "99_eve.py").write_text("")
    found = [(each.student, each.exercise and each.exercise.number) for each in submissions(tmp_path)]
    assert found == [("ada", 5), ("ada", 9), ("bob smith", 12), ("eve", None)]


def test_a_folder_without_submissions_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"STUDENT/05_projections.py or 05_STUDENT.py"):
        check_class(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        check_class(tmp_path / "none")
