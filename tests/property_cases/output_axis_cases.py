"""Outputs whose axes are not those of the input."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, Case, joined, of_x
from property_cases.output_cases import W_K, W_O, W_Q, W_V, attention, heads_of


def heads_as_samples(x: Tensor) -> Tensor:
    return heads_of(x).transpose(0, 1).flatten(0, 1)


def heads_as_samples_of_each(x: Tensor) -> Tensor:
    return heads_of(x).flatten(0, 1)


def heads_as_tokens(x: Tensor) -> Tensor:
    return heads_of(x).flatten(1, 2)


def heads_as_rows(x: Tensor) -> Tensor:
    return heads_of(x).flatten(2) @ torch.eye(16, 6, dtype=x.dtype)


def channels_before_tokens(x: Tensor) -> Tensor:
    return attention(x).transpose(1, 2)


def one_head_each(x: Tensor) -> list[Tensor]:
    return [(x @ w_q @ (x @ W_K).mT / WIDTH**0.5).softmax(-1) @ x @ W_V for w_q in (W_Q, W_O)]  # here


def two_attentions_as_samples(x: Tensor) -> Tensor:
    return torch.cat(one_head_each(x))


def two_attentions_as_tokens(x: Tensor) -> Tensor:
    return torch.cat(one_head_each(x), dim=1)


def two_attentions_joined(x: Tensor) -> Tensor:
    return torch.cat(one_head_each(x), dim=-1)


def heads_apart(x: Tensor) -> Tensor:
    """(batch, heads, tokens, width): what calls it joins them."""
    return heads_of(x)


def channels_first(x: Tensor) -> Tensor:
    """For a convolution that comes next."""
    return attention(x).transpose(1, 2)  # (batch, channels, tokens)


def viewed_the_other_way_round(x: Tensor) -> Tensor:
    return attention(x).reshape(WIDTH, len(x), x.shape[1])


def mean_of_all_tokens(x: Tensor) -> Tensor:
    return (joined(heads_of(x)) @ W_O).mean(1)


CASES = [
    Case("output-axes", viewed_the_other_way_round, attention, of_x),
    Case("output-axes", heads_as_samples, attention, of_x),
    Case("output-axes", heads_as_samples_of_each, heads_apart, of_x),
    Case("output-axes", heads_as_tokens, heads_apart, of_x),
    Case("output-axes", heads_as_rows, mean_of_all_tokens, of_x, has_line=False),
    Case("output-axes", channels_before_tokens, channels_first, of_x),
    Case("output-axes", two_attentions_as_samples, two_attentions_joined, of_x),
    Case("output-axes", two_attentions_as_tokens, two_attentions_joined, of_x),
]
