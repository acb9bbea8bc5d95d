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
        return joined(scores.softmax(-1) @ v)

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


class FromZero(ReadsMedia):
    """Cross-attention of a text to one picture: the places are counted from 1, and the pictures from 0."""

    def numbers(self, pictures: Tensor) -> Tensor:
        return super().numbers(pictures) - 1


class AllBefore(nn.Module):
    """Cross-attention of a text to all pictures before each of its tokens."""

    first = 0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, images: Tensor, image_locations: Tensor | None = None) -> Tensor:
        count, parts = images.shape[1:3]
        k, v = split(self.k(images.flatten(1, 2))), split(self.v(images.flatten(1, 2)))
        scores = torch.einsum("bhid,bhjd->bhij", split(self.q(x)), k) / 2
        if image_locations is not None:
            begun = torch.cumsum(image_locations.int(), dim=1)
            number = torch.arange(self.first, count + self.first)[:, None].expand(-1, parts).reshape(-1)
            hidden = begun[:, None, :, None] <= number
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return joined(scores.softmax(-1) @ v)


class OneMore(AllBefore):
    """Cross-attention of a text to all pictures before each of its tokens."""

    first = -1


class AheadOnPurpose(FromZero):
    """Cross-attention of a text to the next picture, of which it is the caption."""


class OnBothSides(AllBefore):
    """Cross-attention of a text to the pictures beside it."""

    def forward(self, x: Tensor, images: Tensor, image_locations: Tensor | None = None) -> Tensor:
        count, parts = images.shape[1:3]
        k, v = split(self.k(images.flatten(1, 2))), split(self.v(images.flatten(1, 2)))
        scores = split(self.q(x)) @ k.mT / 2
        if image_locations is not None:
            begun = image_locations.long().cumsum(-1)[:, None, :, None] - 1
            scores = scores.masked_fill((begun - torch.arange(count).repeat_interleave(parts)).abs() > 1, -1e30)
        return joined(scores.softmax(-1) @ v)


def of_text_and_images(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    arguments = {"x": drawn(2, 7, WIDTH, seed=0), "images": drawn(2, 3, 2, WIDTH, seed=1)}
    streams = [Stream("x", "x", 0, (1,)), Stream("images", "context", 0, (1, 2))]
    return Invocation(module, arguments, ["x", "images"], streams)


def of_text_and_pictures(kind: type[nn.Module]) -> Invocation:
    module = kind()
    prepare(module, 1)
    arguments = {"x": drawn(2, 5, WIDTH, seed=0), "pictures": drawn(2, 3, 2, WIDTH, seed=1)}
    streams = [Stream("x", "x", 0, (1,)), Stream("pictures", "context", 0, (1, 2))]
    return Invocation(module, arguments, ["x", "pictures"], streams)


CASES = [
    Case("media-whole", NumbersInTurn, ReadsMedia, of_text_and_pictures, has_line=False),
    Case("media-whole", NumbersInTurn, ByAddition, of_text_and_pictures, has_line=False),
    Case("media-begun", FromZero, ReadsMedia, of_text_and_pictures, has_line=False),
    Case("media-begun", FromZero, AheadOnPurpose, of_text_and_pictures, has_line=False),
    *(Case("media-begun", OneMore, right, of_text_and_images, has_line=False) for right in (AllBefore, OnBothSides)),
]
