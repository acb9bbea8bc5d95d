"""The bank: every wrong implementation is called wrong, by its cause; every right one is not."""

import zlib

import pytest

from bank import Entry, entries
from regard.check.judge import judge
from regard.check.report import Report
from regard.check.search import Deadline
from regard.check.subject import subject_of
from regard.check.verdict import report_of

LONG = 60.0
"""Seconds to look for a cause: more than a user is asked to wait, for machines that are busy with other tests."""
EVERY = entries()
WRONG = [entry for entry in EVERY if entry.verdict == "wrong"]
RIGHT = [entry for entry in EVERY if entry.verdict != "wrong"]


def some(several: list[Entry]) -> list[object]:
    """All of them, but most only where tests may take long: which ones, their names decide."""
    quick = [zlib.crc32(entry.name.encode()) % 8 == 0 for entry in several]
    return [
        pytest.param(entry, id=entry.name, marks=() if first else pytest.mark.slow)
        for entry, first in zip(several, quick, strict=True)
    ]


def judged(entry: Entry) -> Report:
    return report_of(judge(subject_of(entry.what, entry.args), deadline=Deadline(LONG)))


@pytest.mark.parametrize("entry", some(WRONG))
def test_what_is_wrong_is_called_so_by_its_cause(entry):
    report = judged(entry)
    assert report.verdict == "wrong", str(report)
    assert {cause.id for cause in report.causes} == set(entry.causes), str(report)
    assert report.step is not None
    assert "{" not in "".join(cause.message + cause.impact for cause in report.causes), "a number was left open"


@pytest.mark.parametrize("entry", some(RIGHT))
def test_what_is_right_is_not_called_wrong(entry):
    report = judged(entry)
    assert report.ok, str(report)
    assert not report.causes
    if entry.verdict == "design":
        assert report.verdict == "different by design" or entry.says in str(report), str(report)
    else:
        assert report.verdict != "different by design" or report.conventions, str(report)


def test_the_bank_is_as_large_as_it_should_be():
    assert len(WRONG) >= 80
    assert len(RIGHT) >= 40
    assert sum(entry.source is not None for entry in WRONG) >= 40
    assert len({cause for entry in WRONG for cause in entry.causes}) >= 70
