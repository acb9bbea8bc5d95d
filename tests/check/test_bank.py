"""The bank: every wrong implementation is called wrong, by its cause; every right one is not."""

import pytest

from bank import Entry, entries
from regard.check.conclusion import conclude
from regard.check.mistakes.catalog import MISTAKES
from regard.check.report import Report
from regard.check.report.findings import Findings
from regard.check.sandbox.schema import from_json, to_json
from regard.check.sandbox.torch_settings import UserSettings

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")  # with shape checks it would take five times as long
WRONG = [entry for entry in entries() if entry.verdict == "wrong"]
RIGHT = [entry for entry in entries() if entry.verdict != "wrong"]
WIRED = [entry for entry in WRONG if entry.name.startswith("modules_blocks.")]
"""What is around their attentions is judged in test_blocks.py, in the fast tier as well."""


def fewest(several: list[Entry]) -> list[object]:
    """In the fast tier the first for each mistake, by itself where there is one, or for each file and verdict."""
    first: dict[object, Entry] = {}
    for entry in sorted(several, key=lambda entry: (entry.dear, entry in WIRED, len(entry.causes))):
        for kind in entry.causes or [(entry.what.__module__, entry.verdict)]:
            first.setdefault(kind, entry)
    fast = [entry for entry in first.values() if entry not in WIRED]
    return [pytest.param(entry, id=entry.name, marks=() if entry in fast else pytest.mark.more) for entry in several]


def judged(entry: Entry) -> Report:
    findings = conclude(entry.what, entry.args, UserSettings())
    return from_json(Findings, to_json(findings)).report()  # as it crosses from one process to the other


@pytest.mark.parametrize("entry", fewest(WRONG))
def test_what_is_wrong_is_called_so_by_its_cause(entry):
    report = judged(entry)
    assert report.verdict == "wrong", str(report)
    assert {cause.id for cause in report.causes} == set(entry.causes), str(report)
    assert report.step is not None
    assert "{" not in "".join(cause.message + cause.impact for cause in report.causes), "a number was left open"


@pytest.mark.parametrize("entry", fewest(RIGHT))
def test_what_is_right_is_not_called_wrong(entry):
    report = judged(entry)
    assert report.ok, str(report)
    assert not report.causes
    if entry.verdict == "design":
        assert report.verdict == "different by design" or entry.says in str(report), str(report)
    else:
        assert report.verdict != "different by design" or report.conventions, str(report)
    if entry.verdict == "convention":
        assert any(entry.says in each for each in report.conventions), str(report)


def test_the_bank_has_every_mistake_and_half_of_the_wrong_ones_shipped():
    in_bank = {cause for entry in WRONG for cause in entry.causes}
    assert set(MISTAKES) - in_bank == {"future-leak", "batch-mixed"}  # in test_behaviour.py
    assert len(RIGHT) >= 40
    assert sum(entry.source is not None for entry in WRONG) >= 40
