"""Masks that make zeros of tokens that are none, and hide no key."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attention_styles import tokens_call
from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=each) / 3 for each in range(95, 98))


def of_tokens(function: Any) -> Invocation:
    """A call that may be told which tokens are valid."""
    call = tokens_call(function, drawn(2, 5, WIDTH, seed=0))
    call.masks = ["token_valid"]
    return call


def read(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q, k, v = (split(each @ w) for each, w in zip((queries, keys, values), (W_Q, W_K, W_V), strict=True))
    return joined((q @ k.mT / 2).softmax(-1) @ v)  # here


def blanked(x: Tensor, token_valid: Tensor | None = None) -> Tensor:
    x = x if token_valid is None else x * token_valid[..., None]
    return read(x, x, x)


def keys_blanked(x: Tensor, token_valid: Tensor | None = None) -> Tensor:
    real = x if token_valid is None else x * token_valid[..., None]
    return read(x, real, x)


def values_blanked(x: Tensor, token_valid: Tensor | None = None) -> Tensor:
    real = x if token_valid is None else x * token_valid[..., None]
    return read(x, x, real)


CASES = [
    Case("mask-argument", keys_blanked, blanked, of_tokens),
    Case("mask-argument", values_blanked, blanked, of_tokens),
]
