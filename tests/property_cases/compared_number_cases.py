"""Tokens that attend inside of their segment: that of a query is compared with that of a key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from property_cases import Case, drawn, joined, of_x, split
from regard.check.target import Invocation

QUERIES, KEYS = (drawn(8, 8, seed=seed) / 3 for seed in (90, 91))


def attended(x: Tensor, seen: Tensor) -> Tensor:
    scores = split(x @ QUERIES) @ split(x @ KEYS).mT / 2
    return joined(scores.masked_fill(~seen[:, None], -1e9).softmax(-1) @ split(x))


def of_one_segment(x: Tensor, segments: Tensor) -> Tensor:
    return attended(x, segments[:, :, None] == segments[:, None, :])


def with_itself(x: Tensor, segments: Tensor) -> Tensor:
    return attended(x, segments[:, :, None] == segments.unsqueeze(-1))  # here


def with_itself_as_keys(x: Tensor, segments: Tensor) -> Tensor:
    return attended(x, segments[:, None] >= segments.unsqueeze(1))  # here


def block_by_block(x: Tensor, segments: Tensor) -> Tensor:
    """The mask of one query after the other, each of which is compared with itself as well."""
    count = segments.shape[1]
    rows = [torch.cat([segments[:, [i]] == segments[:, j : j + 1] for j in range(count)], 1) for i in range(count)]
    return attended(x, torch.stack(rows, 1))


def without_nan(x: Tensor, segments: Tensor) -> Tensor:
    """What is no number is no number of a segment."""
    seen = (x == x).all(-1)
    return attended(x, (segments[:, :, None] == segments[:, None, :]) & seen[:, None])


def with_segments(function: Any) -> Invocation:
    call = of_x(function)
    given = {**call.arguments, "segments": torch.zeros(2, 4, dtype=torch.long)}
    return replace(call, arguments=given, positional=["x", "segments"])


CASES = [
    *(
        Case("compared-with-others", with_itself, right, with_segments)
        for right in (of_one_segment, block_by_block, without_nan)
    ),
    Case("compared-with-others", with_itself_as_keys, of_one_segment, with_segments),
]
