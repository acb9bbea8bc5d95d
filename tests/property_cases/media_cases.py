"""A text that reads the media in it, whose places are handed over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class ReadsMedia(nn.Module):
    """Cross-attention of a text to the latest picture before each of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, pictures: Tensor, picture_places: Tensor | None = None) -> Tensor:
        k, v = map(split, self.kv(pictures.flatten(1, 2)).chunk(2, -1))
        scores = split(self.q(x)) @ k.mT / 2
        if picture_places is not None:
            latest = picture_places.long().cumsum(-1)[:, None, :, None]
            scores = scores.masked_fill(latest != self.numbers(pictures) + 1, -1e30)
        return joined(scores.softmax(-1) @ v)  # here

    def numbers(self, pictures: Tensor) -> Tensor:
        count, parts = pictures.shape[1:3]
        return torch.arange(count).repeat_interleave(parts)


class NumbersInTurn(ReadsMedia):
    """Cross-attention of a text to the latest picture before each of its tokens."""

    def numbers(self, pictures: Tensor) -> Tensor:
        count, parts = pictures.shape[1:3]
        return torch.arange(count).repeat(parts)


class ByAddition(ReadsMedia):
    """The same, with the numbers made by an addition."""

    def numbers(self, pictures: Tensor) -> Tensor:
        count, parts = pictures.shape[1:3]
        return (torch.arange(count)[:, None] + torch.zeros(parts).long()).flatten()


def of_text_and_pictures(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    arguments = {"x": drawn(2, 5, WIDTH, seed=0), "pictures": drawn(2, 3, 2, WIDTH, seed=1)}
    streams = [Stream("x", "x", 0, (1,)), Stream("pictures", "context", 0, (1, 2))]
    return Invocation(module, arguments, ["x", "pictures"], streams)


CASES = [
    Case("media-whole", NumbersInTurn, ReadsMedia, of_text_and_pictures, has_line=False),
    Case("media-whole", NumbersInTurn, ByAddition, of_text_and_pictures, has_line=False),
]
