"""Masks that are made of tokens that are zeros, where heads and samples share an axis."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import HEADS, WIDTH, Case, of_x


def heads_outside(x: Tensor, padded: Tensor) -> Tensor:
    """Heads one after the other, each with all samples, as in code after Kyubyong Park's."""
    folded = torch.cat(x.chunk(HEADS, -1), 0)
    scores = folded @ folded.mT / (WIDTH // HEADS) ** 0.5
    weights = scores.masked_fill(padded[:, None], -(2.0**32)).softmax(-1)  # here
    return torch.cat((weights @ folded).chunk(HEADS, 0), -1)


def repeated_item_by_item(x: Tensor) -> Tensor:
    return heads_outside(x, (x.sum(-1) == 0).repeat_interleave(HEADS, 0))


def repeated_as_a_whole(x: Tensor) -> Tensor:
    return heads_outside(x, (x.sum(-1) == 0).repeat(HEADS, 1))


def heads_inside(x: Tensor) -> Tensor:
    """Each sample with all of its heads, as in code of fairseq."""
    folded = x.unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1)
    hidden = (x.sum(-1) == 0).repeat_interleave(HEADS, 0)[:, None]
    weights = (folded @ folded.mT / (WIDTH // HEADS) ** 0.5).masked_fill(hidden, -(2.0**32)).softmax(-1)
    return (weights @ folded).unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2)


def heads_inside_repeated_as_a_whole(x: Tensor) -> Tensor:
    folded = x.unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1)
    hidden = (x.sum(-1) == 0).repeat(HEADS, 1)[:, None]
    scores = (folded @ folded.mT / (WIDTH // HEADS) ** 0.5).masked_fill(hidden, -(2.0**32))
    weights = scores.softmax(-1)  # here
    return (weights @ folded).unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2)


def cut_to_the_longest(x: Tensor) -> Tensor:
    """Padding that all samples have is nowhere attended to: what each reads hangs on no other one."""
    hidden = (x == 0).all(-1)
    last = int((~hidden).any(0).nonzero().max()) + 1
    scores = (x @ x[:, :last].mT / WIDTH**0.5).masked_fill(hidden[:, None, :last], -torch.inf)
    return scores.softmax(-1) @ x[:, :last]


CASES = [
    Case("mask-of-its-sample", repeated_item_by_item, repeated_as_a_whole, of_x),
    Case("mask-of-its-sample", heads_inside_repeated_as_a_whole, heads_inside, of_x),
    Case("mask-of-its-sample", repeated_item_by_item, cut_to_the_longest, of_x),
]
