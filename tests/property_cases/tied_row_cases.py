"""Scores that are summed over the rows of a grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_styles import tokens_call
from property_cases import Case, drawn
from regard.check.target import Invocation, Stream


def tied(x: Tensor, number: int) -> Tensor:
    """Of (samples, rows, columns, 8)."""
    q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
    scores = torch.einsum("brid,brjd->bij", q * (8 * number) ** -0.5, k)  # here
    return torch.einsum("bij,brjd->brid", scores.softmax(-1), v)


def divided_by_the_rows(x: Tensor) -> Tensor:
    return tied(x, x.shape[1])


def divided_by_the_columns(x: Tensor) -> Tensor:
    return tied(x, x.shape[2])


def divided_by_the_width_alone(x: Tensor) -> Tensor:
    return tied(x, 1)


def of_a_grid(function: Any) -> Invocation:
    """A call of three rows and five columns."""
    call = tokens_call(function, drawn(2, 3, 5, 8, seed=0))
    call.streams = [Stream("x", "x", 0, (1, 2))]
    return call


CASES = [
    Case("tied-row-scale", divided_by_the_columns, right, of_a_grid)
    for right in (divided_by_the_rows, divided_by_the_width_alone)
]
