"""Additive attention, and weights without values: found, named, and judged for what they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import drawn, of_q_k_v
from regard.check.properties.analysis import Analysis, analyze
from regard.check.target import Invocation, Stream

VECTOR = drawn(4, seed=5)


def of_sequences(function: Callable[..., Tensor]) -> Invocation:
    """Of queries, keys and values without heads, with another number of keys than of queries."""
    streams = [Stream(name, name, 0, (1,)) for name in "qkv"]
    sizes = {"q": 3, "k": 5, "v": 5}
    arguments = {name: drawn(2, size, 4, seed=seed) for seed, (name, size) in enumerate(sizes.items())}
    return Invocation(function, arguments, ["q", "k", "v"], streams)


def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(q[:, :, None] + k[:, None]) @ VECTOR


def designs(analysis: Analysis) -> list[str]:
    return [each.property for each in analysis.designs]


def test_additive_scores_are_a_design() -> None:
    analysis = analyze(of_sequences(lambda q, k, v: added(q, k, v).softmax(-1) @ v))
    assert analysis.complete
    assert (analysis.violations, designs(analysis)) == ([], ["additive-scores"])


@pytest.mark.parametrize(
    ("attend", "property"),
    [
        (lambda q, k, v: added(q, k, v).softmax(-2) @ v, "softmax-over-keys"),
        (lambda q, k, v: added(q, k, v).softmax(-1) @ v.flip(1), "value-of-the-key"),
        (lambda q, k, v: added(q, k.flip(0), v).softmax(-1) @ v, "samples-apart"),
    ],
)
def test_mistakes_of_additive_attention_are_seen(attend: Callable[..., Tensor], property: str) -> None:
    violations = analyze(of_sequences(attend)).violations
    assert property in [each.property for each in violations]


def test_weights_that_are_returned_are_a_design() -> None:
    analysis = analyze(of_q_k_v(lambda q, k, v: (q @ k.mT / 2).softmax(-1)))
    assert analysis.complete
    assert (analysis.violations, designs(analysis)) == ([], ["weights-alone"])


@pytest.mark.parametrize("axis", [1, 2], ids=["heads", "queries"])
def test_the_axis_of_weights_that_are_returned_is_judged(axis: int) -> None:
    (found,) = analyze(of_q_k_v(lambda q, k, v: (q @ k.mT / 2).softmax(axis))).violations
    assert found.property == "softmax-over-keys"


def test_scores_that_are_returned_are_no_attention() -> None:
    assert analyze(of_q_k_v(lambda q, k, v: q @ k.mT / 2)).num_attentions == 0
