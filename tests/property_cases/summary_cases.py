"""Attention to the tokens of a block and to the means of the blocks before it."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_x, split
from regard.check.target import Invocation

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (90, 91, 92))
BLOCK = 3


def of_two_blocks(function: object) -> Invocation:
    return of_x(function, tokens=2 * BLOCK)


def read(x: Tensor, *, own_mean: bool) -> Tensor:
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    means = [each.unflatten(2, (-1, BLOCK)).mean(3) for each in (k, v)]
    keys, values = (torch.cat(each, 2) for each in zip(means, (k, v), strict=True))
    tokens = torch.arange(x.shape[1])
    block = tokens // BLOCK
    before = block[:, None] - block[::BLOCK] >= (0 if own_mean else 1)
    own = (block[:, None] == block) & (tokens[:, None] >= tokens)
    scores = (q @ keys.mT / 2).masked_fill(~torch.cat([before, own], 1), -torch.inf)
    return joined(scores.softmax(-1) @ values)


def means_of_blocks_before(x: Tensor) -> Tensor:
    """Causal attention to the tokens of a block, and to the means of the blocks before it."""
    return read(x, own_mean=False)


def the_mean_of_its_own_block(x: Tensor) -> Tensor:
    """Causal attention to the tokens of a block, and to the means of the blocks before it."""
    return read(x, own_mean=True)


CASES = [
    Case("later-tokens-hidden", the_mean_of_its_own_block, means_of_blocks_before, of_two_blocks, has_line=False),
]
