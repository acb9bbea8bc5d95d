"""The report: every step with what was found of it, what is wrong with its mend, and never more than a page."""

import io
import math
import os
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from regard.check.conclusion import conclude
from regard.check.properties.analyze import analyze
from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.not_a_number import nan_findings
from regard.check.report import AttentionResult, CodeLocation, Example, FoundMistake, Report, StepResult
from regard.check.report.findings import Findings, Measurement
from regard.check.report.lines import MAX_LINES
from regard.check.report.steps import STEPS, attention_results, step_results
from regard.check.sandbox.schema import from_json, to_json
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import invocations
from regard.check.trace.recorder import record

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


class Causal(nn.Module):
    """Right: causal, in heads, with an output projection."""

    softmax_axis = -1

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_qkv, self.w_o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (each.view(b, t, self.num_heads, -1).transpose(1, 2) for each in self.w_qkv(x).chunk(3, -1))
        scores = self.positioned(q) @ k.mT / math.sqrt(d // self.num_heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        heads = scores.softmax(self.softmax_axis) @ v
        return self.w_o(heads.transpose(1, 2).reshape(b, t, d))

    def positioned(self, q):
        return q


class QueriesRotated(Causal):
    """Wrong in a way that no recipe has."""

    def positioned(self, q):
        half = q.size(-1) // 2
        angles = torch.arange(q.size(-2), dtype=q.dtype)[:, None].expand(-1, half)
        a, b, rest = q.split([half, half, q.size(-1) - 2 * half], -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos(), rest], -1)


def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def capped(q, k, v):
    return (5 * torch.tanh(q @ k.mT / math.sqrt(q.size(-1)) / 5)).softmax(-1) @ v


def in_numpy(q, k, v):
    scores = q.detach().numpy() @ k.mT.detach().numpy() / math.sqrt(q.size(-1))
    return torch.from_numpy(scores).softmax(-1).numpy() @ v.detach().numpy()


class Layered(nn.Module):
    """A model with attentions that a caller chooses."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class QueriesCompete(Causal):
    softmax_axis = -2


@cache
def report_of(implementation):
    """As the command makes it, in this process."""
    findings = conclude(implementation, {}, UserSettings())
    return from_json(Findings, to_json(findings)).report()


def analysis_of(implementation):
    """What the properties say, without the search for a recipe."""
    return analyze(next(iter(invocations(implementation, args={}))))


def steps_of(report):
    assert [each.step for each in report.steps] == list(STEPS)
    return {each.step: each for each in report.steps}


def test_every_step_of_what_is_right_is_told_with_its_number():
    report = report_of(Causal)
    assert report.ok
    steps = steps_of(report)
    assert {name: each.status for name, each in steps.items()} == {
        "projections": "holds",
        "positions": "absent",
        "scores": "holds",
        "scaled": "holds",
        "biased": "absent",
        "masked": "holds",
        "weights": "holds",
        "output": "holds",
        "heads": "holds",
        "projected": "holds",
    }
    assert steps["scaled"].text == "1/sqrt(4) = 0.5"
    assert steps["masked"].text == "causal: a query sees keys up to its own position"


def test_a_mistake_has_its_step_its_line_its_impact_and_its_mend():
    report = report_of(unscaled)
    steps = steps_of(report)
    assert {name for name, each in steps.items() if each.status == "violated"} == {"scaled"}
    (cause,) = report.causes
    assert steps["scaled"].text == cause.message
    shown = str(report)
    for line in (
        "  ✗ scaled       no-scale, see below",
        f"  {replace(cause.location, file=os.path.relpath(cause.location.file))}",
        f"  what it does: {cause.impact}",
        "  write instead: weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)",
    ):
        assert line in shown.split("\n")


@pytest.mark.more
def test_a_property_that_no_known_mistake_explains_has_them_too():
    report = report_of(QueriesRotated)
    (cause,) = report.causes
    assert (report.verdict, cause.id, report.step) == ("wrong", "positions-relative", "positions")
    assert cause.fix == PROPERTIES["positions-relative"].fix
    assert "scores = self.positioned(q) @ k.mT" in cause.location.text
    assert steps_of(report)["positions"].status == "violated"


@pytest.mark.more
def test_a_mistake_that_a_recipe_finds_inside_of_a_model_has_the_line_of_the_property():
    torch.manual_seed(0)
    (cause,) = report_of(Layered(Causal(8, 2), QueriesCompete(8, 2))).causes
    assert cause.step == "weights"
    assert "softmax" in cause.location.text


@pytest.mark.parametrize(
    ("implementation", "step"),
    [
        (QueriesRotated, "positions"),
        (QueriesCompete, "weights"),
    ],
)
def test_a_property_is_violated_at_its_step_alone(implementation, step):
    steps = step_results(analysis_of(implementation).findings)
    assert [each.step for each in steps if each.status == "violated"] == [step]


def test_a_design_is_told_at_its_step():
    steps = step_results(analysis_of(capped).findings)
    assert StepResult("scaled", "design", "scores are soft-capped by tanh") in steps


def test_what_could_not_be_exercised_is_told():
    step = steps_of(report_of(unscaled))["masked"]
    assert step.status == "not exercised"
    assert step.text.endswith("no mask argument: masking by an argument not exercised")


def test_what_is_seen_in_its_output_alone_says_so():
    step = steps_of(report_of(in_numpy))["weights"]
    assert step.status == "holds"
    assert step.text.endswith("(read off the output)")


def test_attentions_of_a_model_are_judged_one_by_one_and_shown_together():
    torch.manual_seed(0)
    found = attention_results([analysis_of(Layered(Causal(8, 2), Causal(8, 2), QueriesCompete(8, 2)))])
    assert [(each.path, each.verdict) for each in found] == [
        ("layers.0", "right"),
        ("layers.1", "right"),
        ("layers.2", "wrong"),
    ]
    lines = str(Report("Layered", "wrong", attentions=found)).split("\n")
    assert lines[2:4] == ["3 attentions:", "  ✓ layers.0-1: right"]
    assert lines[4].startswith("  ✗ layers.2: wrong: the softmax sums to one over the queries")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda x: x.masked_fill(torch.eye(4)[3].bool()[:, None], -torch.inf).softmax(-1),
            "from step weights on, where row 3 has nothing to attend to",
        ),
        (lambda x: (x - x).log().exp() / (x - x), "from the operation div on: "),
        (lambda x: x.new_full((2,), math.nan).nan_to_num(0.0), None),
    ],
)
def test_nan_is_never_unspoken(function, said):
    x = torch.randn(4, 4)

    def call(watch):
        with watch({"x": x}):
            return function(x)

    found = [each.message for each in nan_findings(record(call, outputs=lambda result: [result], lines=True))]
    assert len(found) == (said is not None)
    assert all(said in message for message in found)


LONG = Report(
    "Long",
    "wrong",
    causes=tuple(
        FoundMistake(f"mistake-{n}", "scaled", f"so {n}", "bad", CodeLocation("a.py", n, "x"), ("a/b#1",), "y")
        for n in range(9)
    ),
    conventions=tuple(f"convention {n}" for n in range(9)),
    notes=tuple(f"note {n}\nof\nmany\nlines\nindeed" for n in range(9)),
    assumptions=tuple(f"d_{n}={n}" for n in range(9)),
    example=Example("scaled", "no mask", [[1.0]] * 3, [[0.0]] * 3),
    step="scaled",
    steps=tuple(StepResult(step, "holds", "so") for step in ("call", *STEPS, "block")),
    attentions=tuple(AttentionResult("x." + n, "wrong", n) for n in "abcdefghi"),
)


def test_a_report_is_a_page_at_most_and_says_what_it_leaves_out():
    lines = str(LONG).split("\n")
    assert len(lines) <= MAX_LINES
    assert "- and 8 more: --json" in lines


def test_up_to_six_notes_are_told_whole():
    lines = str(Report("Mine", "right", notes=tuple("abcdefg"))).split("\n")
    assert lines == ["Mine: right", "", "notes:", *(f"- {each}" for each in "abcdef"), "- and 1 more: --json"]


def test_a_report_comes_back_from_json():
    for report in (LONG, report_of(unscaled), report_of(Causal)):
        assert Report.from_json(report.to_json()) == report


def test_a_stream_without_these_characters_gets_plain_ones(monkeypatch):
    report = replace(LONG, causes=(), steps=(StepResult("scores", "holds", "so"), StepResult("biased", "absent", "no")))
    assert "  ✓ scores  so\n  – biased  no" in str(report)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert "  ok scores  so\n  -  biased  no" in str(report)
    assert str(report).isascii()


def test_steps_are_violated_where_mistakes_are_whatever_else_was_sent():
    held = tuple(StepResult(step, "holds", "so") for step in STEPS)
    mistake = FoundMistake("no-scale", "scaled", "so", "bad")
    report = Findings("a", mistakes=(mistake,), measurements=(Measurement("", 1, 0.0),), steps=held).report()
    assert steps_of(report)["scaled"].status == "violated"
