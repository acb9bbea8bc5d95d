"""A mask as a picture for the terminal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._shapes import Bool
from regard.attention.mask.geometry import MaskGeometry, Tile, TileGrid
from regard.notebook import TextPicture

MAX_CELLS = 64
"""Cells along a side of the picture: 64 cells of two characters and their labels fit a wide terminal."""

NONE_ALLOWED, SOME_ALLOWED, ALL_ALLOWED = "· ", "▒▒", "██"

MAX_EVALUATED_PAIRS = 2**20
"""How many pairs of a query and a key are evaluated at once."""


def draw(mask: MaskGeometry, queries: int, keys: int, batch: int = 0, head: int = 0) -> TextPicture:
    """See `Mask.show`."""
    if queries < 0 or keys < 0:
        raise ValueError(f"{mask!r}: there cannot be {queries} queries and {keys} keys")
    selection = _selection(mask, queries, keys, batch, head)
    grid = TileGrid(queries, keys, max(1, -(-queries // MAX_CELLS)), max(1, -(-keys // MAX_CELLS)))
    any_allowed, all_allowed = _pooled(mask, grid, batch, head)

    title = f"{mask!r}   {_count(queries, 'queries')} (down) x {_count(keys, 'keys')} (across){selection}"
    labels = [str(first) for first in grid.first_queries[:, 0].tolist()]
    margin = max(map(len, labels), default=1)
    lines = [title, "", f"{'':>{margin}}  {_ruler(grid)}".rstrip()]
    for label, some, every in zip(labels, any_allowed.tolist(), all_allowed.tolist(), strict=True):
        cells = (
            ALL_ALLOWED if all_ else SOME_ALLOWED if any_ else NONE_ALLOWED
            for any_, all_ in zip(some, every, strict=True)
        )
        lines.append(f"{label:>{margin}}  {''.join(cells)}".rstrip())
    return TextPicture("\n".join([*lines, "", _legend(grid)]))


def _selection(mask: MaskGeometry, queries: int, keys: int, batch: int, head: int) -> str:
    """The batch row and the head in words, where the mask differs by them; refused if the mask has no such one."""
    text = ""
    for name, axis, index, size in zip(
        ("batch", "head"), ("batch rows", "heads"), (batch, head), mask.batch_heads(queries, keys), strict=True
    ):
        if index < 0:
            raise IndexError(f"show({name}={index}): {axis} count from 0")
        if size is not None and index >= size:
            raise IndexError(f"show({name}={index}): {mask!r} is for {size} {axis}, counted from 0")
        text += "" if size is None else f", {name} {index}"
    return text


def _pooled(
    mask: MaskGeometry, grid: TileGrid, batch: int, head: int
) -> tuple[Bool[Tensor, "tile_rows tile_columns"], Bool[Tensor, "tile_rows tile_columns"]]:
    """For each tile of the grid: may some pair attend, and may all pairs attend?"""
    shape = len(grid.first_queries), len(grid.first_keys)
    bounds = mask.bounds(grid)
    any_allowed = _select(bounds.any_allowed, batch, head).expand(shape).clone()
    all_allowed = _select(bounds.all_allowed, batch, head).expand(shape).clone()
    for row, unknown in enumerate(any_allowed & ~all_allowed):
        if unknown.any():
            columns = unknown.nonzero()[:, 0]
            span = slice(int(columns[0]), int(columns[-1]) + 1)
            exact = _evaluated(mask, grid, row, span, unknown[span], batch, head)
            any_allowed[row, span], all_allowed[row, span] = exact
    return any_allowed, all_allowed


def _evaluated(
    mask: MaskGeometry, grid: TileGrid, row: int, span: slice, unknown: Bool[Tensor, " tiles"], batch: int, head: int
) -> tuple[Bool[Tensor, " tiles"], Bool[Tensor, " tiles"]]:
    """The same for neighbouring tiles of one row, by evaluating the mask a few queries at a time."""
    tiles, width = len(unknown), grid.tile_columns
    left, right = span.start * width, min(span.stop * width, grid.keys)
    top, bottom = int(grid.first_queries[row]), int(grid.last_queries[row]) + 1
    any_allowed, all_allowed = torch.zeros_like(unknown), torch.ones_like(unknown)
    rows = max(1, MAX_EVALUATED_PAIRS // (right - left))
    starts = range(top, bottom, rows)
    # The last queries come second: the edge of a window may enter a tile below its first queries.
    for first in (starts[0], *reversed(starts[1:])):
        tile = Tile(grid.queries, grid.keys, (first, min(first + rows, bottom)), (left, right))
        part = _select(mask.evaluate(tile), batch, head).expand(-1, right - left).cpu()
        # The last tile may be narrower than the others: its padding must change neither answer.
        fill = tiles * width - (right - left)
        any_allowed |= pad(part, (0, fill), value=False).reshape(-1, tiles, width).any(-1).any(0)
        all_allowed &= pad(part, (0, fill), value=True).reshape(-1, tiles, width).all(-1).all(0)
        if not (unknown & (all_allowed | ~any_allowed)).any():
            break  # every unknown tile has a pair that may attend and one that may not
    return any_allowed, all_allowed


def _select(t: Tensor, batch: int, head: int) -> Bool[Tensor, "rows columns"]:
    """One batch row and one head of ``(..., rows, columns)``; an axis of size 1 serves all."""
    t = t.reshape(1, 1, *t.shape) if t.ndim == 2 else t
    *_, batches, heads, rows, columns = (1, *t.shape)
    t = t.reshape(batches, heads, rows, columns)
    return t[batch if batches > 1 else 0, head if heads > 1 else 0]


def _ruler(grid: TileGrid) -> str:
    """The first key of every 1, 5 or 8 columns, each above its column."""
    cells = len(grid.first_keys)
    step = 1 if cells <= 10 and grid.keys <= 10 else 5 if grid.tile_columns == 1 else 8
    return "".join(f"{first:<{2 * step}}" for first in grid.first_keys[::step].tolist())


def _legend(grid: TileGrid) -> str:
    if grid.tile_rows == grid.tile_columns == 1:
        return f"{ALL_ALLOWED} may attend   {NONE_ALLOWED}may not"
    cell = f"one cell: {_count(grid.tile_rows, 'queries')} x {_count(grid.tile_columns, 'keys')}"
    return f"{ALL_ALLOWED} all may attend   {SOME_ALLOWED} some may   {NONE_ALLOWED}none may   {cell}"


def _count(n: int, unit: str) -> str:
    return f"{n} {unit}" if n != 1 else {"queries": "1 query", "keys": "1 key"}[unit]
