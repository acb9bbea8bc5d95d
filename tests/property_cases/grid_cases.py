"""Rotary positions of the patches of a picture that is not square."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import WIDTH, Case, drawn, joined, of_x, split
from property_cases.position_cases import rotated
from regard.check.target import Invocation, Stream

ROWS, COLUMNS = 3, 4
W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81))


def of_a_map(function: Any) -> Invocation:
    """A call of (batch, rows, columns, width)."""
    call = tokens_call(function, drawn(2, ROWS, COLUMNS, WIDTH, seed=0))
    call.streams = [Stream(call.streams[0].argument, "x", 0, (1, 2))]
    return call


def attended(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """With pairs of channels that turn by two places of each token."""
    angles = torch.stack([first, second], -1).double().repeat(1, 2)
    tokens = x.flatten(1, 2)
    q, k = (rotated(split(tokens @ each), angles) for each in (W_Q, W_K))
    made = (q @ k.mT / 2).softmax(-1) @ split(tokens)  # here
    return joined(made).view(x.shape)


def places(columns: int) -> tuple[Tensor, Tensor]:
    """The row and the column of each token."""
    tokens = torch.arange(ROWS * COLUMNS)
    return tokens // columns, tokens % columns


def by_row_and_column(x: Tensor) -> Tensor:
    """Attention with two-dimensional rotary positions."""
    return attended(x, *places(COLUMNS))


def by_the_row_alone(x: Tensor) -> Tensor:
    """Attention with two-dimensional rotary positions."""
    row, _ = places(COLUMNS)
    return attended(x, row, row)


def by_the_column_alone(x: Tensor) -> Tensor:
    """Attention. The first pair turns with the row, the second one with the column."""
    _, column = places(COLUMNS)
    return attended(x, column, column)


def by_another_width(x: Tensor) -> Tensor:
    return attended(x, *places(ROWS))


def by_frames(x: Tensor) -> Tensor:
    """A two-dimensional map of frames and places; rotary positions are those of the frames."""
    frame, _ = places(COLUMNS)
    return attended(x, frame, frame)


class RowAndColumn(nn.Module):
    """Attention to the patches of a grid, with two-dimensional rotary positions."""

    def __init__(self, grid: tuple[int, int] = (ROWS, COLUMNS)) -> None:
        super().__init__()
        self.grid = grid

    def turns(self) -> tuple[Tensor, Tensor]:
        return places(self.grid[1])

    def forward(self, x: Tensor) -> Tensor:
        q, k = (rotated(split(x @ each), self.angles()) for each in (W_Q, W_K))
        return joined((q @ k.mT / 2).softmax(-1) @ split(x))  # here

    def angles(self) -> Tensor:
        return torch.stack(self.turns(), -1).double().repeat(1, 2)


class RowTwice(RowAndColumn):
    """Attention to the patches of a grid, with two-dimensional rotary positions."""

    def turns(self) -> tuple[Tensor, Tensor]:
        row, _ = super().turns()
        return row, row


class ByFrames(RowTwice):
    """Attention to the patches of a grid of frames and places, with rotary positions by the frame."""


class WidthFirst(RowAndColumn):
    """Attention to the patches of a grid (columns, rows), with two-dimensional rotary positions."""

    def __init__(self) -> None:
        super().__init__((COLUMNS, ROWS))

    def turns(self) -> tuple[Tensor, Tensor]:
        return places(self.grid[0])


class OfASquare(nn.Module):
    """Attention to patches."""

    def turns(self, tokens: int) -> tuple[Tensor, Tensor]:
        side = round(tokens**0.5)
        y, x = torch.arange(tokens) // side, torch.arange(tokens) % side
        return y, x

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.stack(self.turns(x.shape[1]), -1).double().repeat(1, 2)
        q, k = (rotated(split(x @ each), angles) for each in (W_Q, W_K))
        return joined((q @ k.mT / 2).softmax(-1) @ split(x))  # here


class ReadsX(OfASquare):
    """Attention to patches."""

    def turns(self, tokens: int) -> tuple[Tensor, Tensor]:
        side = round(tokens**0.5)
        y, x = torch.arange(tokens) // side, torch.arange(tokens) % side  # noqa: F841
        return x, x


class OfXAndY(OfASquare):
    """Attention to patches, rotary embedding of x and y on a half of each head."""

    def turns(self, tokens: int) -> tuple[Tensor, Tensor]:
        at = torch.arange(tokens) // round(tokens**0.5)
        return at, at


class OfLines(OfXAndY):
    """Attention to patches, with rotary positions of the line alone."""


def of_a_square(kind: Any) -> Invocation:
    """A call of nine patches in a row, of which nothing else is told."""
    return of_x(kind(), tokens=9)


def of_patches(kind: Any) -> Invocation:
    """A call of a module that was made for a grid, with its patches in a row."""
    return of_x(kind(), tokens=ROWS * COLUMNS)


CASES = [
    Case("rotary-axes", RowTwice, RowAndColumn, of_patches),
    Case("rotary-axes", RowTwice, ByFrames, of_patches),
    Case("rotary-axes", RowTwice, WidthFirst, of_patches),
    Case("rotary-axes", by_the_row_alone, by_row_and_column, of_a_map),
    Case("rotary-axes", by_the_column_alone, by_frames, of_a_map),
    Case("rotary-axes", by_another_width, by_row_and_column, of_a_map),
    Case("rotary-axes", ReadsX, OfASquare, of_a_square),
    Case("rotary-axes", OfXAndY, OfLines, of_a_square),
]
