"""Masks by frames, scales and other parts of several tokens, which what is called causal may mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import of_x
from property_cases.frame_cases import frame_by_frame, of_a_film
from property_cases.mask_order_cases import attended
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream


def kinds(call: Invocation) -> list[tuple[str, str]]:
    found = analyze(call, masks=True).findings
    return [(each.kind, each.property) for each in found if each.kind in ("violation", "design")]


def parts(sizes: list[int]) -> Tensor:
    part = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return part[:, None] >= part


def by_scales(x: Tensor) -> Tensor:
    """Scale-wise causal attention: a token attends to its own scale and to the smaller ones."""
    return attended(x, parts([1, 2, 3]))


def by_pairs_that_nothing_tells(x: Tensor) -> Tensor:
    """Causal attention of a language model."""
    return attended(x, parts([2, 2, 2]))


def by_tiles(x: Tensor) -> Tensor:
    """Blockwise causal attention: scores are computed tile by tile, to save memory."""
    return attended(x, parts([2, 2, 2]))


def test_frames_of_a_film_are_seen_whole_by_design() -> None:
    assert kinds(of_a_film(frame_by_frame)) == [("design", "mask-pattern")]


def test_frames_need_no_words_where_tokens_have_three_axes() -> None:
    def causal(x: Tensor) -> Tensor:
        return frame_by_frame(x)

    causal.__doc__ = "Attention for autoregressive film models."
    assert kinds(of_a_film(causal)) == [("design", "mask-pattern")]


def test_rows_of_a_picture_are_no_frames() -> None:
    def causal(x: Tensor) -> Tensor:
        return attended(x.flatten(1, 2), parts([2, 2, 2])).view(x.shape)

    causal.__doc__ = "Causal attention over the pixels of a picture."
    call = of_x(causal)
    call.arguments["x"] = torch.randn(2, 3, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    call.streams = [Stream("x", "x", 0, (1, 2))]
    assert kinds(call) == [("violation", "mask-pattern")]


@pytest.mark.parametrize(
    ("function", "kind"), [(by_scales, "design"), (by_pairs_that_nothing_tells, "violation"), (by_tiles, "violation")]
)
def test_of_tokens_in_a_row_the_documentation_says_it(function: Callable[[Tensor], Tensor], kind: str) -> None:
    assert kinds(of_x(function, tokens=6)) == [(kind, "mask-pattern")]
