"""Scores that are sums of several products, in any order, stacked, or each with a factor of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from property_cases import drawn, of_q_k_v, of_x_and_context
from regard.check.properties.analyze import analyze

VECTORS = drawn(3, 4, seed=30)
BY_PAIR = drawn(4, 3, 3, seed=31)
DECAYS = -(torch.arange(3)[:, None] - torch.arange(3)).abs().double() * torch.tensor([[[1.0]], [[2.0]]])


def found(scores: Callable[[Tensor, Tensor], Tensor]) -> set[tuple[str, str]]:
    analysis = analyze(of_q_k_v(lambda q, k, v: scores(q, k).softmax(-1) @ v))
    assert analysis.complete or analysis.violations
    return {(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")}


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: (q @ VECTORS.T + q @ k.mT) / 2,
        lambda q, k: torch.stack([q @ VECTORS.T, q @ k.mT]).sum(0) / 2,
        lambda q, k: torch.stack([q @ k.mT, q @ VECTORS.T], -1).sum(-1) / 2,
    ],
    ids=["in front", "stacked", "stacked behind"],
)
def test_the_order_of_what_is_added_is_of_no_matter(scores: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert found(scores) == {("design", "absolute-logits")}


def test_a_key_of_another_token_than_the_score_s_is_found() -> None:
    def scores(q: Tensor, k: Tensor) -> Tensor:
        return (torch.stack([torch.einsum("bhid,dij->bhij", k, BY_PAIR), q @ k.mT]).sum(0)) / 2

    assert ("violation", "logits-of-the-query") in found(scores)


def test_the_key_of_the_score_is_right() -> None:
    def scores(q: Tensor, k: Tensor) -> Tensor:
        return (torch.stack([torch.einsum("bhjd,dij->bhij", k, BY_PAIR), q @ k.mT]).sum(0)) / 2

    assert ("violation", "logits-of-the-query") not in found(scores)


def decays(q: Tensor) -> Tensor:
    return torch.einsum("fij,bhif->bhij", DECAYS, q[..., :2])


def test_what_learned_vectors_add_may_have_a_factor_of_its_own() -> None:
    assert ("design", "parts-scaled-apart") in found(lambda q, k: q @ k.mT / 2 + 3 * decays(q))


def test_the_scale_of_the_rest_is_judged_all_the_same() -> None:
    assert ("violation", "scale") in found(lambda q, k: q @ k.mT / 4 + 3 * decays(q))


LAYOUT = drawn(8, 2, seed=32), drawn(8, 2, seed=33)


def with_a_layout(x: Tensor, context: Tensor, *, scale: float = 2**-0.5) -> Tensor:
    """Tokens and their places on a page, each with queries and keys of its own, whose scores are added."""
    q, k = (context @ each for each in LAYOUT)
    return (x @ x.mT / 8**0.5 + scale * (q @ k.mT)).softmax(-1) @ x


def test_scores_of_two_sequences_may_be_added_each_with_the_scale_of_its_width() -> None:
    analysis = analyze(of_x_and_context(with_a_layout))
    assert analysis.complete
    assert not analysis.violations
    assert "parts-scaled-apart" in {each.property for each in analysis.designs}
    wrong = analyze(of_x_and_context(partial(with_a_layout, scale=8**-0.5)))
    assert not wrong.complete or wrong.violations
