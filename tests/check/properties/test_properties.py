"""Each property is violated by an implementation that breaks nothing else, at its line, and kept by its right twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from property_cases import Case, all_cases, drawn, joined, of_x, split
from property_cases.output_cases import attention
from regard.check.properties.analysis import Analysis, analyze
from regard.check.properties.catalog import PROPERTIES
from regard.check.target import Invocation, Stream

CASES = all_cases()
TOKENS = 4


def analyzed(call: Invocation, attentions: int = 1) -> Analysis:
    analysis = analyze(call, masks=True)
    assert analysis.num_attentions == attentions, analysis.missing
    return analysis


def test_every_property_has_a_case() -> None:
    assert {case.property for case in CASES} == set(PROPERTIES)


FIRST = {
    case.property: case
    for case in reversed(CASES)
    if not case.property.startswith("cache-") or case.property == "cache-positions"
}
"""What is judged in the fast tier; caches are dear."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case in FIRST.values() else [pytest.mark.more]) for case in CASES],
)
def test_a_property_that_is_violated_is_named_with_its_line(case: Case) -> None:
    violations = analyzed(case.call(case.wrong), case.attentions).violations
    assert {each.property for each in violations} == {case.property}, violations
    if case.has_line:
        assert violations[0].location.text.endswith("# here"), violations[0]


RIGHT = {case.right: case for case in CASES}


@pytest.mark.more
@pytest.mark.parametrize("case", RIGHT.values(), ids=[each.__name__ for each in RIGHT])
def test_the_right_twin_violates_nothing(case: Case) -> None:
    analysis = analyzed(case.call(case.right), case.attentions)
    assert analysis.violations == []


def test_samples_that_are_mixed_before_the_projections_are_seen_in_the_output() -> None:
    (found,) = analyzed(of_x(lambda x: attention(x - x.mean(0, keepdim=True)))).violations
    assert (found.property, found.step) == ("samples-apart", "output")
    assert found.message == "an output depends on 2 samples of x: they are mixed"


def test_a_call_of_one_sample_without_a_batch_is_judged() -> None:
    def divided_by_the_width(x: Tensor) -> Tensor:
        scores = x @ x.T / x.shape[-1]
        return scores.softmax(-1) @ x

    call = Invocation(divided_by_the_width, {"x": drawn(4, 8, seed=0)}, ["x"], [Stream("x", "x", None, (0,))])
    (found,) = analyzed(call).violations
    assert (found.property, found.location.text) == ("scale", "scores = x @ x.T / x.shape[-1]")


def test_weights_whose_heads_a_convolution_mixes_are_no_patches() -> None:
    """Of as many learned keys as heads, so that those of a query look like the channels of a token."""

    def talking(x: Tensor) -> Tensor:
        q, k, v = (split(x @ drawn(8, 8, seed=seed), TOKENS) for seed in range(3))
        learned = drawn(1, TOKENS, TOKENS, 2, seed=4)
        weights = torch.nn.functional.conv2d((q @ learned.mT).softmax(-1), drawn(TOKENS, TOKENS, 1, 1, seed=3))
        return joined((q @ k.mT / 2**0.5).softmax(-1) @ v + weights @ learned)

    assert "patches-whole" not in {each.property for each in analyze(of_x(talking)).violations}
