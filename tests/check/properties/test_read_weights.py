"""Weights that no step shows are read off the output, and judged as those that one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from property_cases import drawn, of_q_k_v, of_x
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def weighted_sum(q: Any, k: Any, v: Any, scale: float) -> Any:
    exponentials = [np.exp(q @ key * scale) for key in k]
    return sum(each * value for each, value in zip(exponentials, v, strict=True)) / sum(exponentials)


def looped(q: Any, k: Any, v: Any, power: float = -0.5) -> Any:
    return np.stack([weighted_sum(row, k, v, k.shape[-1] ** power) for row in q])


def by_heads(q: Any, k: Any, v: Any) -> Any:
    return np.concatenate([looped(q[:, :4], k[:, :4], v[:, :4]), looped(q[:, 4:], k[:, 4:], v[:, 4:])], axis=-1)


def heads_exchanged(q: Any, k: Any, v: Any) -> Any:
    return np.roll(by_heads(q, k, v), 4, axis=-1)


def first_keys(q: Any, k: Any, v: Any) -> Any:
    return looped(q, k[:-2], v[:-2])


def of_arrays(function: Callable[..., Any]) -> Invocation:
    """Of arrays (tokens, width)."""
    given = {name: drawn(tokens, 8, seed=tokens) for name, tokens in (("q", 3), ("k", 5), ("v", 5))}
    streams = [Stream(name, name, None, (0,)) for name in "qkv"]
    return Invocation(function, given, ["q", "k", "v"], streams, arrays=True)


def said(analysis: Analysis, kind: str) -> dict[str, str]:
    return {each.property: each.message for each in analysis.findings if each.kind == kind}


def test_loops_in_numpy_are_judged_step_by_step() -> None:
    analysis = analyze(of_arrays(looped))
    assert analysis.complete
    assert said(analysis, "violation") == {}
    assert {"weights-sum-to-one", "scores-of-two-tokens", "scale"} <= set(said(analysis, "holds"))


def test_heads_that_are_cut_inside_have_a_scale_of_their_width() -> None:
    analysis = analyze(of_arrays(by_heads))
    assert said(analysis, "holds")["scale"] == "1/sqrt(4) = 0.5 (read off the output)"


@pytest.mark.parametrize(
    ("function", "violated", "message"),
    [
        (lambda q, k, v: looped(q, k, v, -1), "scale", "q . k is multiplied by 0.125 = 1/sqrt(64)"),
        (first_keys, "keys-seen", "no query sees the last keys, 3, 4 of 5: every query sees all others"),
        (heads_exchanged, "output-of-the-head", "what is read from channel 4 of the values is returned in channel 0"),
    ],
)
def test_a_loop_in_numpy_that_is_wrong_is_named(function: Callable[..., Any], violated: str, message: str) -> None:
    analysis = analyze(of_arrays(function))
    (found,) = said(analysis, "violation").items()
    assert found[0] == violated
    assert found[1].startswith(message)


def test_a_mask_that_loops_take_is_not_judged() -> None:
    call = of_arrays(lambda q, k, v, mask=None: looped(q, k, v))
    call.masks = ["mask"]
    assert analyze(call).missing == ["mask: not exercised"]


def test_what_is_no_weighted_sum_of_the_values_is_not_read() -> None:
    call = of_arrays(lambda q, k, v: np.tanh(looped(q, k, v)))
    assert not analyze(call).num_attentions


def split(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to parts of the keys, put together by the sums of their exponentials."""
    parts, sums = [], []
    for keys, values in zip(k.chunk(2, -2), v.chunk(2, -2), strict=True):
        scores = q @ keys.mT / 2
        sums.append(scores.logsumexp(-1))
        parts.append(scores.softmax(-1) @ values)
    weights = torch.stack(sums).softmax(0)
    return (torch.stack(parts) * weights[..., None]).sum(0)


def test_softmaxes_over_parts_of_the_keys_may_be_put_together_later() -> None:
    analysis = analyze(of_q_k_v(split))
    assert said(analysis, "violation") == {}
    assert "scale" in said(analysis, "holds")


def test_softmaxes_over_parts_of_the_keys_that_are_added_sum_to_their_number() -> None:
    def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pairs = zip(k.chunk(2, -2), v.chunk(2, -2), strict=True)
        return sum((q @ keys.mT / 2).softmax(-1) @ values for keys, values in pairs)  # type: ignore[return-value]

    assert said(analyze(of_q_k_v(added)), "violation") == {
        "weights-sum-to-one": "the weights of a query sum to 2 over its keys, not to 1"
    }


def test_the_largest_score_may_be_taken_out_of_a_softmax_by_hand() -> None:
    def stable(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
        return exponentials / exponentials.sum(-1, keepdim=True) @ v

    analysis = analyze(of_q_k_v(stable))
    assert said(analysis, "violation") == {}
    assert "scale" in said(analysis, "holds")


def test_where_the_sums_of_a_softmax_by_hand_go_is_judged() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exponentials = (q @ k.mT / 2).exp()
        return exponentials @ v / exponentials.sum(-1, keepdim=True)

    kept, turned = (analyze(of_q_k_v(each)) for each in (by_hand, lambda q, k, v: by_hand(q, k, v).flip(1)))
    assert said(kept, "violation") == {}
    assert "output-of-the-token" in said(kept, "holds")
    assert list(said(turned, "violation")) == ["output-of-the-head"]


def divided_later(x: Tensor, axis: int, parts: int = 1) -> Tensor:
    """With values that are projected in parts."""
    q, k = (x @ drawn(8, 8, seed=seed) for seed in range(2))
    v = torch.cat([x @ each for each in drawn(8, 8, seed=2).chunk(parts, 1)], -1)
    exponentials = (q @ k.mT / 8**0.5).exp()
    heads = exponentials @ v / exponentials.sum(axis)[..., None]
    return heads @ drawn(8, 8, seed=3)


@pytest.mark.parametrize("parts", [1, 2])
def test_projected_sums_may_be_divided_after_they_are_made(parts: int) -> None:
    analysis = analyze(of_x(lambda x: divided_later(x, -1, parts)))
    assert analysis.complete
    assert {"weights-sum-later", "scale"} <= set(said(analysis, "holds"))


def test_a_division_of_projected_sums_by_anything_else_leaves_the_weights_open() -> None:
    assert not analyze(of_x(lambda x: divided_later(x, -2))).complete


def recurrent(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exponentials of queries and keys, one token after the other."""
    state, total, rows = q.new_zeros(*q.shape[:2], 4, 4), q.new_zeros(*q.shape[:2], 4), []
    for query, key, value in zip(q.exp().unbind(2), k.exp().unbind(2), v.unbind(2), strict=True):
        state = state + key[..., None] * value[..., None, :]
        total = total + key
        rows.append((query[..., None] * state).sum(-2) / (query * total).sum(-1, keepdim=True))
    return torch.stack(rows, 2)


def test_exponentials_of_queries_and_of_keys_are_features_of_linear_attention() -> None:
    analysis = analyze(of_q_k_v(recurrent))
    assert (analysis.missing, said(analysis, "violation")) == ([], {})
    assert {"linear-attention", "mask-pattern"} <= set(said(analysis, "design")) | set(said(analysis, "holds"))
