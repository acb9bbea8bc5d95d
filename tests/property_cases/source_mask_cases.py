"""A mask of padding of the source, which a decoder and the encoder of its memory read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn
from regard.check.target import Invocation, Stream

Mask = Tensor | None


def attended(x: Tensor, context: Tensor, seed: int, mask: Mask = None) -> Tensor:
    q, k, v = (each @ (drawn(WIDTH, WIDTH, seed=seed + n) / 3) for n, each in enumerate((x, context, context)))
    scores = q @ k.mT / WIDTH**0.5  # here
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1) @ v


def read_by_both(x: Tensor, src: Tensor, src_mask: Mask = None) -> Tensor:
    return attended(x, src + attended(src, src, 1, src_mask), 4, src_mask)


def read_by_one(x: Tensor, src: Tensor, src_mask: Mask = None) -> Tensor:
    return attended(x, src + attended(src, src, 1), 4, src_mask)


def one_for_each(x: Tensor, src: Tensor, src_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
    return attended(x, src + attended(src, src, 1, src_mask), 4, memory_mask)


def of_a_source(function: Any, *, masks: tuple[str, ...] = ("src_mask",)) -> Invocation:
    streams = [Stream("x", "x", 0, (1,)), Stream("src", "context", 0, (1,))]
    arguments = {"x": drawn(2, 3, WIDTH, seed=0), "src": drawn(2, 5, WIDTH, seed=1)}
    return Invocation(function, arguments, [*arguments], streams, masks=[*masks])


def with_one_for_each(function: Any) -> Invocation:
    """With as many masks as the code takes."""
    return of_a_source(function, masks=("src_mask", "memory_mask") if function is one_for_each else ("src_mask",))


CASES = [
    Case("mask-of-the-source", read_by_one, read_by_both, of_a_source, attentions=2),
    Case("mask-of-the-source", read_by_one, one_for_each, with_one_for_each, attentions=2),
]
