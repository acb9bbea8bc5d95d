"""A mask of padding of the source, which a decoder and the encoder of its memory read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import WIDTH, drawn
from regard.check.properties.analysis import analyze
from regard.check.target import Invocation, Stream

Mask = Tensor | None


def attended(x: Tensor, context: Tensor, seed: int, mask: Mask = None) -> Tensor:
    q, k, v = (each @ (drawn(WIDTH, WIDTH, seed=seed + n) / 3) for n, each in enumerate((x, context, context)))
    scores = q @ k.mT / WIDTH**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1) @ v


def read_by_both(x: Tensor, src: Tensor, src_mask: Mask = None) -> Tensor:
    return attended(x, src + attended(src, src, 1, src_mask), 4, src_mask)


def read_by_one(x: Tensor, src: Tensor, src_mask: Mask = None) -> Tensor:
    return attended(x, src + attended(src, src, 1), 4, src_mask)


def one_for_each(x: Tensor, src: Tensor, src_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
    return attended(x, src + attended(src, src, 1, src_mask), 4, memory_mask)


def of_the_memory(x: Tensor, src: Tensor, memory_mask: Mask = None) -> Tensor:
    return read_by_one(x, src, memory_mask)


def call(function: Callable[..., Tensor], *masks: str) -> Invocation:
    streams = [Stream("x", "x", 0, (1,)), Stream("src", "context", 0, (1,))]
    arguments = {"x": drawn(2, 3, WIDTH, seed=0), "src": drawn(2, 5, WIDTH, seed=1)}
    return Invocation(function, arguments, [*arguments], streams, masks=[*masks])


@pytest.mark.parametrize(
    ("function", "masks"),
    [(read_by_both, ["src_mask"]), (one_for_each, ["src_mask", "memory_mask"]), (of_the_memory, ["memory_mask"])],
)
def test_a_source_whose_tokens_are_hidden_from_both_is_right(function: Callable[..., Tensor], masks: list[str]) -> None:
    analysis = analyze(call(function, *masks), masks=True)
    assert (analysis.num_attentions, analysis.violations) == (2, [])


def test_what_is_hidden_from_the_target_alone_comes_through_the_others() -> None:
    (found,) = analyze(call(read_by_one, "src_mask"), masks=True).violations
    assert found.property == "mask-of-the-source"
