"""Talking heads: scores or weights of all heads are mixed, and the attention is found all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from property_cases import HEADS, drawn, of_q_k_v
from regard.check.properties.analyze import analyze

MIXTURE = drawn(HEADS, HEADS, seed=7)
Mix = Callable[[Tensor], Tensor]


def by_einsum(heads: Tensor) -> Tensor:
    return torch.einsum("bhij,hg->bgij", heads, MIXTURE)


def by_linear_layer(heads: Tensor) -> Tensor:
    return F.linear(heads.permute(0, 2, 3, 1), MIXTURE).permute(0, 3, 1, 2)


def by_convolution(heads: Tensor) -> Tensor:
    return F.conv2d(heads, MIXTURE[:, :, None, None])


def unmixed(heads: Tensor) -> Tensor:
    return heads


def talking(before: Mix, after: Mix, axis: int = -1) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return after(before(q @ k.mT / 2).softmax(axis)) @ v

    return attend


@pytest.mark.parametrize("mix", [by_einsum, by_linear_layer, by_convolution])
@pytest.mark.parametrize("sides", ["before", "after", "before and after"])
def test_heads_that_are_mixed_are_a_design(mix: Mix, sides: str) -> None:
    before, after = (mix if side in sides else unmixed for side in ("before", "after"))
    analysis = analyze(of_q_k_v(talking(before, after)))
    assert analysis.complete
    assert analysis.violations == []
    (design,) = analysis.designs
    assert design.message == f"heads are mixed {sides} the softmax (talking heads)"


def test_the_scale_is_judged_where_heads_are_mixed_after_the_softmax() -> None:
    def unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_einsum((q @ k.mT).softmax(-1)) @ v

    (found,) = analyze(of_q_k_v(unscaled)).violations
    assert found.property == "scale"


def test_the_axis_of_the_softmax_is_judged() -> None:
    (found,) = analyze(of_q_k_v(talking(by_einsum, by_einsum, axis=-2))).violations
    assert (found.property, found.message) == (
        "softmax-over-keys",
        "the softmax sums to one over the queries, not over the keys of each query",
    )


def test_scores_that_are_mixed_after_a_softmax_that_nothing_reads_are_wrong() -> None:
    def mixed_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = by_einsum(q @ k.mT / 2)
        scores.softmax(-1)
        return by_einsum(scores) @ v

    (found,) = analyze(of_q_k_v(mixed_again)).violations
    assert found.property == "weights-sum-to-one"
    assert "nothing reads the weights that the softmax returned" in found.message


@pytest.mark.parametrize(
    "mix",
    [
        lambda weights: weights @ drawn(3, 3, seed=8),
        lambda weights: F.conv2d(weights, drawn(HEADS, HEADS, 3, 3, seed=8), padding=1),
    ],
    ids=["a matrix over the keys", "a convolution over its neighbours"],
)
def test_keys_that_are_mixed_are_no_heads(mix: Mix) -> None:
    analysis = analyze(of_q_k_v(talking(unmixed, mix)))
    assert analysis.num_attentions == 1
    assert not any(each.property == "talking-heads" for each in analysis.designs)


def differential(allowed: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        one, other = ((each @ k.mT / 2).masked_fill(~allowed, -torch.inf).softmax(-1) for each in (q, q.flip(-1)))
        return (one - 0.6 * other) @ v

    return attend


def test_weights_that_are_subtracted_are_a_design() -> None:
    analysis = analyze(of_q_k_v(differential(torch.ones(3, 3).bool())))
    assert analysis.complete
    assert (analysis.violations, [each.property for each in analysis.designs]) == ([], ["differential"])


def test_the_mask_of_weights_that_are_subtracted_is_judged() -> None:
    (found,) = analyze(of_q_k_v(differential(torch.ones(3, 3).tril(1).bool()))).violations
    assert found.property == "mask-pattern"
