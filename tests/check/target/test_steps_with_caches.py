"""Steps of a decoder that are functions: they are handed a filled cache, and return the next one."""

from __future__ import annotations

import torch
from target_calls import attention, axes, first
from torch import Tensor

from regard.check import check


def step(x_t: Tensor, weights: dict[str, Tensor], cache: Tensor, pos: int) -> tuple[Tensor, Tensor]:
    """x_t: (B, C), cache: (2, B, H, max_len, D)"""
    heads = cache.shape[2]
    cache = cache.clone()
    cache[0, :, :, pos] = (x_t @ weights["k"]).unflatten(-1, (heads, -1))
    cache[1, :, :, pos] = (x_t @ weights["v"]).unflatten(-1, (heads, -1))
    keys, values = cache[:, :, :, : pos + 1]
    return attention((x_t @ weights["q"]).unflatten(-1, (heads, 1, -1)), keys, values).flatten(1), cache


def step_without_itself(x_t: Tensor, weights: dict[str, Tensor], cache: Tensor, pos: int) -> tuple[Tensor, Tensor]:
    """x_t: (B, C), cache: (2, B, H, max_len, D)"""
    heads = cache.shape[2]
    cache = cache.clone()
    cache[0, :, :, pos] = (x_t @ weights["k"]).unflatten(-1, (heads, -1))
    cache[1, :, :, pos] = (x_t @ weights["v"]).unflatten(-1, (heads, -1))
    keys, values = cache[:, :, :, :pos]
    return attention((x_t @ weights["q"]).unflatten(-1, (heads, 1, -1)), keys, values).flatten(1), cache


def test_the_token_of_a_step_comes_after_those_of_its_cache() -> None:
    call = first(step)
    assert axes(call) == [("x", 0, (), None), ("context", 1, (3,), 2)]
    assert call.arguments["pos"] == call.arguments["cache"].shape[3] - 1
    assert check(step).verdict == "right"


def test_a_step_reads_what_it_writes() -> None:
    assert {each.id for each in check(step_without_itself).causes} == {"cache-places"}


def joined(x: Tensor, past_k: Tensor, past_v: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """x, past_k, past_v: (B, T, C)"""
    return attention(x @ wq, torch.cat((past_k, x @ wk), 1), torch.cat((past_v, x @ wv), 1))


def joined_crosswise(x: Tensor, past_k: Tensor, past_v: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """x, past_k, past_v: (B, T, C)"""
    return attention(x @ wq, torch.cat((past_k, x @ wk), 1), torch.cat((x @ wv, past_v), 1))


def test_cached_values_belong_to_the_cached_keys() -> None:
    assert check(joined).verdict == "right"
    assert {each.id for each in check(joined_crosswise).causes} == {"value-of-the-key"}
