"""Lengths by which linear attention leaves padding out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from property_cases import WIDTH, Case, drawn, of_x
from regard.check.target import Invocation

Lengths = Tensor | None


def are_real(x: Tensor, lengths: Tensor) -> Tensor:
    """(samples, tokens, 1)."""
    return (torch.arange(x.shape[1]) < lengths[:, None])[..., None]


def summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.mT @ v) / (q @ k.sum(1)[..., None])  # here


def projected(x: Tensor) -> list[Tensor]:
    return [x @ drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in range(3)]


def padding_left_out_before_the_features(x: Tensor, lengths: Lengths = None) -> Tensor:
    q, k, v = projected(x)
    k = k if lengths is None else k.masked_fill(~are_real(x, lengths), 0)
    return summed(elu(q) + 1, elu(k) + 1, v)


def padding_left_out_after_the_features(x: Tensor, lengths: Lengths = None) -> Tensor:
    q, k, v = projected(x)
    k = elu(k) + 1
    return summed(elu(q) + 1, k if lengths is None else k.masked_fill(~are_real(x, lengths), 0), v)


def divided_by_lengths(x: Tensor, lengths: Lengths = None) -> Tensor:
    """Padding is zeros already: the sums are divided by how many tokens there are."""
    q, k, v = projected(x)
    counts = torch.full((x.shape[0],), x.shape[1]) if lengths is None else lengths
    return q @ (k.mT @ v) / counts[:, None, None]


def with_lengths(function: Any) -> Invocation:
    call = of_x(function)
    call.lengths = ["lengths"]
    return call


CASES = [
    Case("mask-argument", padding_left_out_before_the_features, padding_left_out_after_the_features, with_lengths),
    Case("mask-argument", padding_left_out_before_the_features, divided_by_lengths, with_lengths),
]
