"""Annotations of GitHub Actions: one line each, with the signs that would end it escaped."""

import pytest

from regard.check.report import CodeLocation, FoundMistake, Report
from regard.check.report.annotations import github_annotations

HERE = CodeLocation("a,b.py", 7, "")


def wrong(*locations):
    causes = tuple(FoundMistake("no-scale", "scaled", "50%\r\nmore: a, b", "impact", place) for place in locations)
    return Report("Mine", "wrong", causes)


@pytest.mark.parametrize(
    ("report", "place", "lines"),
    [
        (Report("Mine", "right"), HERE, []),
        (Report("Mine", "different by design"), HERE, []),
        (
            wrong(CodeLocation("a,b.py", 9, "x"), None),
            HERE,
            [
                "::error file=a%2Cb.py,line=9,title=Mine%3A no-scale (in scaled)::50%25%0D%0Amore: a, b%0Aimpact",
                "::error file=a%2Cb.py,line=7,title=Mine%3A no-scale (in scaled)::50%25%0D%0Amore: a, b%0Aimpact",
            ],
        ),
        (
            wrong(CodeLocation("lesson.ipynb", 9, "x", cell=3)),
            None,
            [
                "::error file=lesson.ipynb,title=Mine%3A no-scale (in scaled) (cell 3%2C line 9)::"
                "50%25%0D%0Amore: a, b%0Aimpact"
            ],
        ),
        (
            Report("Mine", "undetermined", reasons=("one", "two")),
            None,
            ["::warning title=Mine%3A undetermined::one%0Atwo"],
        ),
    ],
)
def test_one_for_each_cause_and_a_warning_for_what_is_undetermined(report, place, lines):
    assert github_annotations(report, place) == lines


@pytest.mark.parametrize(("file", "shown"), [("sub/a.py", "sub/a.py"), ("/elsewhere/a.py", "/elsewhere/a.py")])
def test_a_path_is_that_from_the_current_folder(tmp_path, monkeypatch, file, shown):
    monkeypatch.chdir(tmp_path)
    location = CodeLocation(str(tmp_path / file), 1, "")
    assert f"::error file={shown},line=1" in github_annotations(wrong(location))[0]
