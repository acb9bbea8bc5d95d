"""Windows of a picture that was rolled, and the mask that keeps its ends apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
from property_cases.surrounding_cases import of_map
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


def regions(height: int, width: int, *, rows_alone: bool = False, everywhere: bool = False) -> Tensor:
    """(height, width): the part of a picture rolled by one that a place is in: the last row and column are apart."""
    numbers = torch.zeros(height, width)
    if everywhere:
        numbers[1::2] = 1
    numbers[-1:] = 1
    if not rows_alone:
        numbers[:, -1:] += 2
    return numbers


def rolled_windows(x: Tensor, *, rows_alone: bool = False, everywhere: bool = False) -> Tensor:
    """Attention within shifted windows of 2 x 2, as in Swin."""
    batch, height, width, channels = x.shape

    def cut(x: Tensor) -> Tensor:
        return x.view(-1, height // 2, 2, width // 2, 2, x.shape[-1]).transpose(2, 3).reshape(-1, 4, x.shape[-1])

    numbers = regions(height, width, rows_alone=rows_alone, everywhere=everywhere)
    parts = cut(numbers.to(x.dtype)[None, ..., None]).repeat(batch, 1, 1)
    windows = cut(x.roll((-1, -1), (1, 2)))
    scores = (windows @ windows.mT / channels**0.5).masked_fill(parts != parts.mT, -torch.inf)  # here
    read = (scores.softmax(-1) @ windows).view(batch, height // 2, width // 2, 2, 2, channels)
    return read.transpose(2, 3).reshape(x.shape).roll((1, 1), (1, 2))


class RolledOn(nn.Module):
    """Attention within shifted windows of 2 x 2, without a mask; the picture is a globe's."""

    back = 1

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1] // 2, x.shape[2] // 2
        cut = x.roll((-1, -1), (1, 2)).unflatten(2, (width, 2)).unflatten(1, (height, 2)).transpose(2, 3)
        q, k, v = self.qkv(cut.flatten(3, 4)).chunk(3, -1)
        read = (q @ k.mT / WIDTH**0.5).softmax(-1) @ v  # here
        read = self.out(read).unflatten(3, (2, 2)).transpose(2, 3).reshape(x.shape)
        return x + read.roll((self.back, self.back), (1, 2))


class RolledOnAndOn(RolledOn):
    """The same, of a globe."""

    back = -1


def of_one_window(kind: type[nn.Module]) -> Invocation:
    """A call of a picture that is one window."""
    module = kind()
    prepare(module, 1)
    return of_map(module, 2, 2)


def rolled_windows_cut_everywhere(x: Tensor) -> Tensor:
    """The mask of the last windows is that of all."""
    return rolled_windows(x, everywhere=True)


def rolled_windows_parted_by_rows(x: Tensor) -> Tensor:
    return rolled_windows(x, rows_alone=True)


def windows_with_added(x: Tensor, *, by_distance: bool) -> Tensor:
    """Numbers of regions that are added as they are, or slopes of each head by the distance."""
    batch, height, width, channels = x.shape

    def cut(x: Tensor) -> Tensor:
        return x.view(-1, height // 2, 2, width // 2, 2, x.shape[-1]).transpose(2, 3).reshape(-1, 4, x.shape[-1])

    parts = cut(regions(height, width).to(x.dtype)[None, ..., None]).repeat(batch, 1, 1)
    places = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    far = (places[:, None] - places).abs().sum(-1)
    added = -far * torch.tensor([0.5, 0.25])[:, None, None] if by_distance else (parts - parts.mT)[:, None]
    windows = cut(x.roll((-1, -1), (1, 2)))
    heads = windows.unflatten(-1, (2, -1)).transpose(1, 2)
    scores = heads @ heads.mT / heads.shape[-1] ** 0.5
    weights = (scores + added).softmax(-1)  # here
    read = (weights @ heads).transpose(1, 2).flatten(2).view(batch, height // 2, width // 2, 2, 2, channels)
    return read.transpose(2, 3).reshape(x.shape).roll((1, 1), (1, 2))


def regions_added_as_they_are(x: Tensor) -> Tensor:
    return windows_with_added(x, by_distance=False)


def slopes_by_distance(x: Tensor) -> Tensor:
    return windows_with_added(x, by_distance=True)


class NormedOverThePicture(nn.Module):
    """A norm over all places stands before the projection: each row of it is of every token, most of all of its own."""

    rows_alone = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape

        def cut(x: Tensor) -> Tensor:
            return x.view(-1, height // 2, 2, width // 2, 2, x.shape[-1]).transpose(2, 3).reshape(-1, 4, x.shape[-1])

        normed = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)
        q, k, v = self.qkv(cut(normed.roll((-1, -1), (1, 2)))).chunk(3, -1)
        parts = cut(regions(height, width, rows_alone=self.rows_alone)[None, ..., None]).repeat(batch, 1, 1)
        scores = (q @ k.mT / channels**0.5).masked_fill(parts != parts.mT, -torch.inf)  # here
        read = (scores.softmax(-1) @ v).view(batch, height // 2, width // 2, 2, 2, channels)
        return x + read.transpose(2, 3).reshape(x.shape).roll((1, 1), (1, 2))


class NormedAndPartedByRows(NormedOverThePicture):
    rows_alone = True


class InTwoLayers(nn.Module):
    """The tokens of the second layer are rows of its own projection: a norm over the picture and a layer come first."""

    second: type[nn.Module] = NormedOverThePicture

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = NormedOverThePicture(), self.second()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.two(self.one(x))
        return result


class InTwoLayersPartedByRows(InTwoLayers):
    second = NormedAndPartedByRows


class ShiftedAfterPlain(nn.Module):
    """Windows of 2 x 2 of a picture, then of the same picture that was rolled."""

    def __init__(self) -> None:
        super().__init__()
        self.qkvs = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def is_masked(self, shift: int) -> bool:
        return shift > 0

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape

        def cut(x: Tensor) -> Tensor:
            return x.view(-1, height // 2, 2, width // 2, 2, x.shape[-1]).transpose(2, 3).reshape(-1, 4, x.shape[-1])

        for shift, qkv in enumerate(self.qkvs):
            q, k, v = qkv(cut(x.roll((-shift, -shift), (1, 2)) if shift else x)).chunk(3, -1)
            parts = cut(regions(height, width)[None, ..., None]).repeat(batch, 1, 1)
            hidden = (parts != parts.mT) & self.is_masked(shift)
            scores = (q @ k.mT / channels**0.5).masked_fill(hidden, -torch.inf)  # here
            read = (scores.softmax(-1) @ v).view(batch, height // 2, width // 2, 2, 2, channels)
            read = read.transpose(2, 3).reshape(x.shape)
            x = x + (read.roll((shift, shift), (1, 2)) if shift else read)
        return x


class MaskedInBoth(ShiftedAfterPlain):
    def is_masked(self, shift: int) -> bool:
        return True


class RolledBack(nn.Module):
    """Two layers of windows, of a picture that goes on at its other end."""

    back = 1

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.less = nn.Conv2d(3, 6, 2, 2), nn.Linear(6, 3)
        self.layers = nn.ModuleList(nn.Linear(6, 18) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        size = x.shape[1:3]
        for number, layer in enumerate(self.layers):
            cut = x.roll((-number, -number), (1, 2)).unflatten(2, (size[1] // 2, 2)).unflatten(1, (size[0] // 2, 2))
            q, k, v = layer(cut.transpose(2, 3).flatten(3, 4)).chunk(3, -1)
            read = ((q @ k.mT / 6**0.5).softmax(-1) @ v).unflatten(3, (2, 2)).transpose(2, 3).reshape(x.shape)
            x = x + read.roll((self.back * number, self.back * number), (1, 2))  # here
        return self.less(x)


class RolledOnInLayers(RolledBack):
    """Two layers of windows of a globe."""

    back = -1


def of_a_picture(kind: type[nn.Module]) -> Invocation:
    """A call of a module with a picture of 8 x 8."""
    call = of_map(of_module(kind).target)
    return replace(call, arguments={next(iter(call.arguments)): drawn(2, 8, 8, 3, seed=0)})


def of_normed(kind: Any) -> Invocation:
    return of_map(of_module(kind).target)


CASES = [
    Case("order-restored", RolledOnInLayers, RolledBack, of_a_picture, attentions=2),
    Case("output-of-the-token", RolledOnAndOn, RolledOn, of_one_window),
    Case("shifted-windows", NormedAndPartedByRows, NormedOverThePicture, of_normed),
    Case("shifted-windows", InTwoLayersPartedByRows, InTwoLayers, of_normed, attentions=2),
    Case("shifted-windows", MaskedInBoth, ShiftedAfterPlain, of_normed, attentions=2),
    Case("shifted-windows", rolled_windows_cut_everywhere, rolled_windows, of_map),
    Case("shifted-windows", rolled_windows_parted_by_rows, rolled_windows, of_map),
    Case("shifted-windows", regions_added_as_they_are, slopes_by_distance, of_map),
]
