"""Two sequences that ask together, with matrices of their own (joint attention of images and texts)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation, Stream

OF_IMAGE, OF_TEXT = ([drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in seeds] for seeds in ((60, 61, 62), (63, 64, 65)))


def asked_together(x: Tensor, context: Tensor) -> Tensor:
    """What all tokens read, those of the context first."""
    q, k, v = (split(torch.cat([context @ c, x @ i], 1)) for c, i in zip(OF_TEXT, OF_IMAGE, strict=True))
    return joined((q @ k.mT / 2).softmax(-1) @ v)  # here


def context_first(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    read = asked_together(x, context)
    return read[:, context.shape[1] :], read[:, : context.shape[1]]


def cut_as_if_x_came_first(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    read = asked_together(x, context)
    return read[:, : x.shape[1]], read[:, x.shape[1] :]


def x_alone_is_returned(x: Tensor, context: Tensor) -> Tensor:
    return asked_together(x, context)[:, context.shape[1] :]


def the_wrong_end_is_returned(x: Tensor, context: Tensor) -> Tensor:
    return asked_together(x, context)[:, : x.shape[1]]


def one_head_is_lost(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    image, text = context_first(x, context)
    return image[..., :4], text[..., :4]


def of_image_and_text(function: Any) -> Invocation:
    streams = [Stream("x", "x", 0, (1,)), Stream("context", "context", 0, (1,))]
    arguments = {"x": drawn(2, 3, WIDTH, seed=0), "context": drawn(2, 4, WIDTH, seed=1)}
    return Invocation(function, arguments, ["x", "context"], streams)


CASES = [
    Case("output-of-the-token", cut_as_if_x_came_first, context_first, of_image_and_text),
    Case("output-of-the-token", the_wrong_end_is_returned, x_alone_is_returned, of_image_and_text),
    Case("heads-in-output", one_head_is_lost, context_first, of_image_and_text),
]
