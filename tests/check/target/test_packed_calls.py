"""Calls that take several tensors as one: queries, keys and values, or the weights of all projections."""

from __future__ import annotations

import numpy as np
import pytest
from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "right in another layout or convention")


def in_one(qkv: Tensor) -> Tensor:
    """qkv: (batch, seqlen, 3, nheads, headdim)"""
    q, k, v = qkv.transpose(1, 3).unbind(2)
    return attention(q, k, v).transpose(1, 2)


def over_heads(qkv: Tensor) -> Tensor:
    """qkv: (batch, seqlen, 3, nheads, headdim)"""
    return attention(*qkv.unbind(2))


def test_queries_keys_and_values_have_an_axis_for_these() -> None:
    call = first(in_one)
    assert axes(call) == [("x", 0, (1,), 3)]
    assert call.arguments["qkv"].shape[2] == 3
    assert check(in_one).verdict in RIGHT
    assert {each.id for each in check(over_heads).causes} == {"heads-paired"}


def keys_and_values(q: Tensor, kv: Tensor) -> Tensor:
    """q: (B, T, H, D), kv: (B, S, 2, H, D)"""
    k, v = kv.transpose(1, 3).unbind(2)
    return attention(q.transpose(1, 2), k, v).transpose(1, 2)


def test_keys_and_values_have_an_axis_for_both() -> None:
    assert first(keys_and_values).arguments["kv"].shape[2] == 2
    assert check(keys_and_values).verdict in RIGHT


class ChannelsFirst(nn.Module):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(1, (self.n_heads, 3, -1)).unbind(2)
        return attention(q.mT, k.mT, v.mT).mT.flatten(1, 2)


def test_what_keeps_the_number_of_tokens_are_the_tokens() -> None:
    assert axes(first(ChannelsFirst)) == [("x", 0, (2,), None)]
    assert check(ChannelsFirst).verdict in RIGHT


def by_names(x: Tensor, weights: dict[str, Tensor], n_heads: int) -> Tensor:
    made = x @ weights["c_attn_w"] + weights["c_attn_b"]
    q, k, v = (each.unflatten(-1, (n_heads, -1)).transpose(1, 2) for each in made.chunk(3, -1))
    return attention(q, k, v).transpose(1, 2).flatten(2) @ weights["o"]


def test_a_dict_has_the_weights_that_are_read_from_it() -> None:
    call = first(by_names)
    width = call.arguments["x"].shape[-1]
    assert call.packed == {"weights": ["weights.c_attn_w", "weights.c_attn_b", "weights.o"]}
    assert call.arguments["weights.c_attn_w"].shape == (width, 3 * width)
    assert call.arguments["weights.c_attn_b"].shape == (3 * width,)
    assert check(by_names).verdict in RIGHT


def of_a_batch(batch: dict[str, Tensor]) -> Tensor:
    scores = batch["query"] @ batch["key"].mT / batch["query"].shape[-1] ** 0.5
    return scores.masked_fill(~batch["mask"], -1e9).softmax(-1) @ batch["value"]


def test_a_dict_has_the_sequences_that_are_read_from_it() -> None:
    assert [each[0] for each in axes(first(of_a_batch))] == ["q", "k", "v"]
    assert check(of_a_batch).verdict in RIGHT


def over_the_queries(x, params):  # type: ignore[no-untyped-def]
    q, k, v = x @ params["W_q"] + params["b_q"], x @ params["W_k"], x @ params["W_v"]
    scores = np.exp(q @ k.T / np.sqrt(k.shape[-1]))
    return scores / scores.sum(axis=0, keepdims=True) @ v @ params["W_o"]


def test_code_of_numpy_is_given_arrays_though_it_takes_tensors() -> None:
    assert first(over_the_queries).arrays
    assert {each.id for each in check(over_the_queries).causes} == {"softmax-over-keys"}


def as_in_pytorch(x: Tensor, in_proj_weight: Tensor, in_proj_bias: Tensor, out_proj_weight: Tensor) -> Tensor:
    q, k, v = nn.functional.linear(x, in_proj_weight, in_proj_bias).chunk(3, -1)
    return nn.functional.linear(attention(q, k, v), out_proj_weight)


def values_before_keys(x: Tensor, in_proj_weight: Tensor, in_proj_bias: Tensor, out_proj_weight: Tensor) -> Tensor:
    q, v, k = nn.functional.linear(x, in_proj_weight, in_proj_bias).chunk(3, -1)
    return nn.functional.linear(attention(q, k, v), out_proj_weight)


def test_the_weights_of_pytorch_s_module_are_taken_in_its_order() -> None:
    assert check(as_in_pytorch).verdict in RIGHT
    assert {each.id for each in check(values_before_keys).causes} == {"packed-as-documented"}
