"""A mask as a picture for the terminal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._shapes import Bool
from regard.attention.mask.base import Mask, Tile, TileGrid

__all__ = ["draw"]

MOST = 64
"""Cells to a side: two characters each, with their labels, still fit a wide terminal."""

NOBODY, SOME, ALL = "· ", "▒▒", "██"

PAIRS = 2**20
"""How many pairs of query and key are evaluated at once."""


def draw(mask: Mask, queries: int, keys: int, batch: int = 0, head: int = 0) -> str:
    """See `Mask.show`."""
    if queries < 0 or keys < 0:
        raise ValueError(f"{mask!r}: there cannot be {queries} queries and {keys} keys")
    which = _which(mask, queries, keys, batch, head)
    grid = TileGrid(queries, keys, max(1, -(-queries // MOST)), max(1, -(-keys // MOST)))
    some, every = _pooled(mask, grid, batch, head)

    title = f"{mask!r}   {_count(queries, 'queries')} (down) x {_count(keys, 'keys')} (across){which}"
    names = [str(first) for first in grid.first_queries[:, 0].tolist()]
    margin = max(map(len, names), default=1)
    lines = [title, "", f"{'':>{margin}}  {_ruler(grid)}".rstrip()]
    for name, row_some, row_every in zip(names, some.tolist(), every.tolist(), strict=True):
        cells = (ALL if all_ else SOME if any_ else NOBODY for any_, all_ in zip(row_some, row_every, strict=True))
        lines.append(f"{name:>{margin}}  {''.join(cells)}".rstrip())
    return "\n".join([*lines, "", _legend(grid)])


def _which(mask: Mask, queries: int, keys: int, batch: int, head: int) -> str:
    """The batch row and the head in words, where the mask speaks of them; out of its range they are refused."""
    text = ""
    for name, what, index, size in zip(
        ("batch", "head"), ("batch rows", "heads"), (batch, head), mask.batch_heads(queries, keys), strict=True
    ):
        if index < 0:
            raise IndexError(f"show({name}={index}): {what} count from 0")
        if size is not None and index >= size:
            raise IndexError(f"show({name}={index}): {mask!r} speaks of {size} {what}, counted from 0")
        text += "" if size is None else f", {name} {index}"
    return text


def _pooled(
    mask: Mask, grid: TileGrid, batch: int, head: int
) -> tuple[Bool[Tensor, "tile_rows tile_columns"], Bool[Tensor, "tile_rows tile_columns"]]:
    """Which tiles of the grid hold a pair that may attend, and which hold no other."""
    shape = len(grid.first_queries), len(grid.first_keys)
    bounds = mask.bounds(grid)
    some = _chosen(bounds.any_allowed, batch, head).expand(shape).clone()
    every = _chosen(bounds.all_allowed, batch, head).expand(shape).clone()
    for row, unknown in enumerate(some & ~every):
        if unknown.any():
            columns = unknown.nonzero()[:, 0]
            span = slice(int(columns[0]), int(columns[-1]) + 1)
            some[row, span], every[row, span] = _looked(mask, grid, row, span, unknown[span], batch, head)
    return some, every


def _looked(
    mask: Mask, grid: TileGrid, row: int, span: slice, unknown: Bool[Tensor, " tiles"], batch: int, head: int
) -> tuple[Bool[Tensor, " tiles"], Bool[Tensor, " tiles"]]:
    """The same for tiles that stand side by side, by evaluating the mask a few rows at a time."""
    tiles, width = len(unknown), grid.tile_columns
    left, right = span.start * width, min(span.stop * width, grid.keys)
    top, bottom = int(grid.first_queries[row]), int(grid.last_queries[row]) + 1
    some, every = torch.zeros_like(unknown), torch.ones_like(unknown)
    rows = max(1, PAIRS // (right - left))
    starts = range(top, bottom, rows)
    # The last rows come second: an edge that enters a tile below its first rows, as a window's does, shows there.
    for first in (starts[0], *reversed(starts[1:])):
        tile = Tile(grid.queries, grid.keys, (first, min(first + rows, bottom)), (left, right))
        part = _chosen(mask.evaluate(tile), batch, head).expand(-1, right - left).cpu()
        # The last tile may be narrower than the others: what fills it up must change neither answer.
        fill = tiles * width - (right - left)
        some |= pad(part, (0, fill), value=False).reshape(-1, tiles, width).any(-1).any(0)
        every &= pad(part, (0, fill), value=True).reshape(-1, tiles, width).all(-1).all(0)
        if not (unknown & (every | ~some)).any():
            break  # each has shown a pair that may and one that may not; of the others the bounds knew the answer
    return some, every


def _chosen(t: Tensor, batch: int, head: int) -> Bool[Tensor, "rows columns"]:
    """One batch row and one head of ``(..., rows, columns)``; an axis of size 1 answers for all."""
    t = t.reshape(1, 1, *t.shape) if t.ndim == 2 else t
    *_, batches, heads, rows, columns = (1, *t.shape)
    t = t.reshape(batches, heads, rows, columns)
    return t[batch if batches > 1 else 0, head if heads > 1 else 0]


def _ruler(grid: TileGrid) -> str:
    """The first key of every so many columns, each above its own."""
    cells = len(grid.first_keys)
    every = 1 if cells <= 10 and grid.keys <= 10 else 5 if grid.tile_columns == 1 else 8
    return "".join(f"{first:<{2 * every}}" for first in grid.first_keys[::every].tolist())


def _legend(grid: TileGrid) -> str:
    if grid.tile_rows == grid.tile_columns == 1:
        return f"{ALL} may attend   {NOBODY}may not"
    cell = f"one cell: {_count(grid.tile_rows, 'queries')} x {_count(grid.tile_columns, 'keys')}"
    return f"{ALL} all may attend   {SOME} some may   {NOBODY}nobody may   {cell}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n != 1 else {"queries": "1 query", "keys": "1 key"}[what]
