"""Functions that cut tokens into parts of a size that they are told: the last part may be shorter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.check.properties.analyze import analyze
from regard.check.target import invocations


def within_blocks(q: Tensor, k: Tensor, v: Tensor, size: int, *, hides: bool) -> Tensor:
    tokens = q.shape[2]
    filled = -tokens % size
    q, k, v = (F.pad(each, (0, 0, 0, filled)).unflatten(2, (-1, size)) for each in (q, k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if hides:
        real = (torch.arange(tokens + filled) < tokens).view(-1, 1, size)
        scores = scores.masked_fill(~real, -torch.inf)
    return (scores.softmax(-1) @ v).flatten(2, 3)[:, :, :tokens]


def fills_the_last_block(q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    return within_blocks(q, k, v, block_size, hides=False)


def hides_what_fills_the_last_block(q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    return within_blocks(q, k, v, block_size, hides=True)


def of_whole_blocks_alone(q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    """The number of tokens is a multiple of `block_size`."""
    return within_blocks(q, k, v, block_size, hides=False)


def leaves_the_rest_out(q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    whole = q.shape[2] // block_size * block_size
    out = torch.zeros_like(v)
    out[:, :, :whole] = within_blocks(*(each[:, :, :whole] for each in (q, k, v)), block_size, hides=False)
    return out


@pytest.mark.parametrize(
    ("function", "violated"),
    [
        (fills_the_last_block, ["weights-sum-to-one"]),
        (hides_what_fills_the_last_block, []),
        (of_whole_blocks_alone, []),
        (leaves_the_rest_out, []),
    ],
)
def test_what_fills_the_last_part_has_no_weight(function: Any, violated: list[str]) -> None:
    analysis = analyze(next(invocations(function, args={})), masks=True)
    assert [each.property for each in analysis.violations] == violated
