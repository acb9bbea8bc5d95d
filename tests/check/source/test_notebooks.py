"""Notebooks: which lines are Python, what their cells define, and the cell and line that a report names."""

import json
import os
import sys
import textwrap

import pytest

import regard
from regard.check import CodeLocation, FoundMistake, Report
from regard.check.source.importer import load
from regard.check.source.notebook import read_notebook
from regard.errors import InputError
from user_modules import forget_modules

SCALED_BY_TOKENS = """\
import math

def attention(q, k, v):
    scores = q @ k.mT
    scores = scores / math.sqrt(q.shape[-2])
    return scores.softmax(-1) @ v
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Write a notebook of these code cells, each after a cell of text; its path, from the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(*cells, **metadata):
        texts = [textwrap.dedent(cell) for cell in cells]
        made = [
            {"cell_type": kind, "source": text.splitlines(keepends=True)}
            for cell in texts
            for kind, text in (("markdown", "# A heading"), ("code", cell))
        ]
        (tmp_path / "lesson.ipynb").write_text(json.dumps({"cells": made, "metadata": metadata, "nbformat": 4}))
        return "lesson.ipynb"

    yield write
    forget_modules(tmp_path)


@pytest.mark.parametrize(
    ("cell", "python", "skipped"),
    [
        ("x = 7 % 2\n", "x = 7 % 2", ()),
        ("text = '''\n%d\n!\n'''", "text = '''\n%d\n!\n'''", ()),
        ("%matplotlib inline\nx = 1", "pass\nx = 1", ("%matplotlib inline",)),
        ("if True:\n    !ls\nx = 1", "if True:\n    pass\nx = 1", ("!ls",)),
        ("!pip install a \\\n  b\nx = 1", "pass\n\nx = 1", ("!pip install a \\", "b")),
        ("files = !ls\nx = 1", "pass\nx = 1", ("files = !ls",)),
        ("print?\nx = 1", "pass\nx = 1", ("print?",)),
        ("%%bash\nls\ncd ..", "\n\n", ("%%bash",)),
        ("%%time\nx = 1", "pass\nx = 1", ("%%time",)),
    ],
)
def test_lines_of_ipython_are_left_out_and_the_others_keep_their_numbers(notebook, cell, python, skipped):
    (read,) = read_notebook(notebook(cell)).cells
    assert (read.source, read.skipped) == (python, skipped)


def test_its_lines_are_those_of_its_cells(notebook):
    read = read_notebook(notebook("a = 1\nb = 2", "", "c = 3\n\nd = 4\n"))
    places = [read.place(line) for line in range(1, 7)]
    assert places == [
        f"lesson.ipynb cell {n}" for n in ("1, line 1", "1, line 2", "2, line 1", "3, line 1", "3, line 2", "3, line 3")
    ]
    assert [read.source.split("\n")[line - 1] for line in (1, 2, 4, 6)] == ["a = 1", "b = 2", "c = 3", "d = 4"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("x = 1", "not a notebook: JSONDecodeError"),
        ('{"worksheets": []}', "not a notebook of format 4"),
        ('{"cells": []}', "it has no code cells"),
        ('{"cells": [], "metadata": {"language_info": {"name": "R"}}}', "a notebook in R; check reads Python"),
    ],
)
def test_what_is_no_notebook_in_python_is_one_line(tmp_path, text, says):
    path = tmp_path / "lesson.ipynb"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_notebook(str(path))
    assert str(caught.value).startswith(f"{path}: {says}")


def test_its_cells_share_their_names_and_see_its_folder(notebook, tmp_path):
    (tmp_path / "helper.py").write_text("n = 2")
    (tmp_path / "data.txt").write_text("3")
    path = notebook(
        "from helper import n\ndisplay(n)",
        "from pathlib import Path\nm = int(Path('data.txt').read_text())",
        "def add(q):\n    return q + n + m",
    )
    notes = []
    assert load(f"{path}:add", notes)(1) == 6
    assert notes == []


def test_after_a_cell_that_fails_the_others_run_and_it_is_told(notebook):
    path = notebook(
        "import no_such\nn = 1", "n = 2\nm = n / 0", "def (", "def get(q):\n    return n", "!ls\nraise SystemExit(1)"
    )
    notes = []
    assert load(f"{path}:get", notes)(0) == 2
    assert notes == [
        "lesson.ipynb cell 1, line 1 raises ModuleNotFoundError: No module named 'no_such'; judged is what the cells "
        "defined all the same",
        "lesson.ipynb cell 2, line 2 raises ZeroDivisionError: division by zero",
        "lesson.ipynb cell 3, line 1 is not Python: invalid syntax",
        "1 more cells fail",
        "left out of the notebook: '!ls'",
    ]


def test_a_name_that_no_cell_defined_is_told_with_the_cell_that_failed(notebook):
    with pytest.raises(InputError) as caught:
        load(f"{notebook('import no_such', 'def get(q): return q')}:other", [])
    says = "lesson.ipynb has no other; it has get; lesson.ipynb cell 1, line 1 raises ModuleNotFoundError"
    assert str(caught.value).startswith(says)


def test_a_cell_that_does_not_end_is_stopped_and_told(notebook):
    path = notebook(
        "def get(q):\n    return 1", "while True:\n    try:\n        x = 1\n    except Exception:\n        pass"
    )
    notes = []
    assert load(f"{path}:get", notes, cell_seconds=0.2)(0) == 1
    (note,) = notes
    assert note.startswith("lesson.ipynb cell 2, line ")
    assert " was stopped after 0.2 s" in note


def test_lines_of_the_whole_become_those_of_a_cell_wherever_a_report_names_the_notebook(notebook):
    path = notebook("import torch", SCALED_BY_TOKENS)
    location = CodeLocation(os.path.abspath(path), 6, "")
    cause = FoundMistake("scale-tokens", "scaled", "message", "impact", location)
    report = read_notebook(path).relocate(Report("attention", "wrong", (cause,), notes=(f"it was at {path}:2",)))
    assert str(report.causes[0].location) == "lesson.ipynb cell 2, line 5: scores = scores / math.sqrt(q.shape[-2])"
    assert report.notes == ("it was at lesson.ipynb cell 2, line 1",)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.more
def test_a_report_names_the_cell_and_its_line(notebook):
    path = notebook("import torch", SCALED_BY_TOKENS)
    report = regard.check.check_file(f"{path}:attention", {}, timeout=200.0)
    assert report.verdict == "wrong"
    (cause,) = report.causes
    assert str(cause.location) == "lesson.ipynb cell 2, line 5: scores = scores / math.sqrt(q.shape[-2])"


def test_what_stops_in_a_notebook_is_told_with_the_cell_and_its_line(notebook):
    path = notebook("import sys", "def attention(q, k, v):\n    sys.exit(3)")
    report = regard.check.check_file(f"{path}:attention", {}, timeout=200.0)
    assert report.verdict == "undetermined"
    assert report.reasons == ("raised SystemExit: 3; it was at lesson.ipynb cell 2, line 2: sys.exit(3)",)


def test_what_was_left_out_of_a_notebook_is_told_in_the_report(notebook):
    path = notebook("!ls", "def attention(q, k, v):\n    return None")
    report = regard.check.check_file(f"{path}:attention", {}, timeout=200.0)
    assert report.notes == ("left out of the notebook: '!ls'",)
