"""What another process sent, or a file holds, is read as what it should be, or refused: no field is believed."""

import json
import math
from contextlib import suppress

import pytest

from json_places import altered, json_places
from regard.check.report import CodeLocation, Example, FoundMistake, Report
from regard.check.report.findings import Findings, Measurement
from regard.check.sandbox.answer import MAX_ANSWER_BYTES, Answer, Frame, read, write
from regard.check.sandbox.schema import from_builtins, to_builtins
from regard.errors import InputError

TOKEN = b"token"
ANSWER = Answer("memory", "é\n", {"a": [1, -2.5, None, True]}, (Frame("a.py", 3),))
HELD = Measurement("", 5, 0.5)
WRONG = Findings(
    "attention",
    mistakes=(FoundMistake("no-scale", "scaled", "so", "bad", CodeLocation("a.py", 1, "x = 1"), ("a/b#1",)),),
    measurements=(HELD,),
    conventions=("one",),
    notes=("two",),
    example=Example("scaled", "no mask", [[1.0, -math.inf]], [[0.0]]),
)


def test_an_answer_comes_as_it_was_written():
    assert read(write(ANSWER, TOKEN), TOKEN) == ANSWER


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"", "does not begin"),
        (b"token", "Expecting value"),
        (write(ANSWER, b"other"), "does not begin"),
        (write(ANSWER, TOKEN) * 2, "Extra data"),
        (write(ANSWER, TOKEN)[:-1], "Expecting"),
        (b"token" + b"[" * 100_000, "nested too deep"),
        (b"token" + b"1" * 5000, "limit"),
        (b"token\xff", "codec can't decode"),
        (b"token" + b" " * MAX_ANSWER_BYTES, "more than 1048576 bytes"),
        (b"token" + json.dumps(altered(to_builtins(ANSWER), ("result",), math.nan)).encode(), "NaN is no JSON"),
        (b'token{"__reduce__": "print"}', "kind is missing"),
        (b"token" + json.dumps(to_builtins(ANSWER) | {"more": 1}).encode(), "'more' is no field"),
        (b"token" + json.dumps(altered(to_builtins(ANSWER), ("kind",), "right")).encode(), "kind is 'right'"),
        (b"token" + json.dumps(altered(to_builtins(ANSWER), ("frames", 0, "line"), True)).encode(), "line is True"),
    ],
)
def test_what_is_no_answer_is_refused(written, says):
    with pytest.raises(ValueError, match=says):
        read(written, TOKEN)


def test_half_a_character_can_be_printed():
    (back,) = from_builtins(Findings, to_builtins(Findings("a", notes=("\ud800",)))).notes
    assert back.encode() == rb"\ud800"


@pytest.mark.parametrize("value", [None, -1, "x", [], math.nan, 10**400, {"a": 1}], ids=lambda value: str(value)[:9])
def test_an_altered_field_is_refused_or_does_no_harm(value):
    """Of findings, which become a report, and of a report that somebody saved."""
    facts = to_builtins(WRONG)
    for place in json_places(facts):
        with suppress(ValueError):
            report = from_builtins(Findings, altered(facts, place, value)).report()
            assert str(report)
    facts = json.loads(WRONG.report().to_json())
    for place in json_places(facts):
        with suppress(InputError):
            assert str(Report.from_json(json.dumps(altered(facts, place, value))))


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (Findings("a", measurements=(HELD,)), "right"),
        (Findings("a", measurements=(HELD,), conventions=("c",)), "right in another layout or convention"),
        (Findings("a", measurements=(HELD,), conventions=("c",), designs=("d",)), "different by design"),
        (Findings("a", measurements=(HELD,), undetermined=("why",)), "undetermined"),
        (WRONG, "wrong"),
        (Findings("a"), "undetermined"),
        (Findings("a", measurements=(Measurement("", 0, 0.0),)), "undetermined"),
        (Findings("a", measurements=(HELD, Measurement("", 5, 1.5))), "undetermined"),
        (Findings("a", measurements=(Measurement("", 5, math.nan),)), "undetermined"),
        (Findings("a", measurements=(Measurement("", 5, -1.0),)), "undetermined"),
    ],
)
def test_the_verdict_follows_from_what_was_measured(findings, verdict):
    report = findings.report()
    assert report.verdict == verdict
    assert bool(report.reasons) == (verdict == "undetermined")


def test_a_mistake_that_nobody_knows_is_none():
    with pytest.raises(ValueError, match="no mistake 'print'"):
        from_builtins(Findings, altered(to_builtins(WRONG), ("mistakes", 0, "id"), "print")).report()


def test_a_report_is_json_that_any_program_reads_and_comes_back():
    report = WRONG.report()

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(report.to_json(), parse_constant=refuse)["example"]["yours"] == [[1.0, "-inf"]]
    assert Report.from_json(report.to_json()) == report
