"""Calls that take several tensors as one: queries, keys and values, or the weights of all projections."""

from __future__ import annotations

from target_calls import attention, axes, first
from torch import Tensor, nn

from regard.check import check

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
