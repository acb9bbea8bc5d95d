"""FlexAttention's block mask of any mask, from what the mask knows of its tiles and from evaluating the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import BandLimits, band_limits, conjuncts
from regard.attention.mask.geometry import Predicate, TileGrid
from regard.attention.mask.kinds import Band

BLOCK = 128
"""The rows and the columns of a tile, FlexAttention's own choice."""
MAX_EVALUATED_PAIRS = 2**24
"""The largest number of pairs that a mask is evaluated for at once."""
WORDS = BLOCK * BLOCK // 8
"""The numbers of 8 bytes that a tile's booleans are read as."""


def block_mask(call: AttentionCall) -> Any:
    """The `BlockMask` of a call's mask. The compiled kernel contains the mask as a function of positions."""
    assert call.mask is not None
    masks = conjuncts(call.mask)
    if all(isinstance(mask, Band) for mask in masks):
        return _band_blocks(band_limits(masks, call.queries, call.keys), call.queries, call.keys, call.q.device)
    tiles = EvaluatedTiles(call)
    for _ in tiles.evaluate():
        pass
    predicate = call.mask.predicate(call.queries, call.keys, call.q.device)
    return _assemble(tiles.partial, tiles.whole, predicate, call.queries, call.keys)


def lookup_block_mask(call: AttentionCall) -> Any:
    """The same for a mask whose function cannot be compiled: the kernel looks each pair up in a table of tiles.

    The tiles of most masks are mostly equal (of every other token there is one kind), and equal ones are stored once.
    It takes several times as long as a function that is compiled.
    """
    tiles = EvaluatedTiles(call)
    index = torch.zeros(tiles.partial.shape, dtype=torch.int64, device=call.q.device)
    # Uncompiled, as tests on the CPU run it, the kernel looks every pair up: tile 0 is empty, tile 1 is whole.
    tables = [torch.tensor([False, True], device=call.q.device)[:, None].expand(2, BLOCK * BLOCK)]
    num_tiles = 2
    for here, parts in tiles.evaluate():
        partial = tiles.partial[here]
        table, place = _distinct(parts.transpose(3, 4).flatten(4)[partial])
        index[here] = torch.zeros_like(index[here]).masked_scatter(partial, place + num_tiles)
        tables.append(table)
        num_tiles += len(table)
    table, place = _distinct(torch.cat(tables))
    index = place[torch.where(tiles.partial, index, tiles.whole.long())].to(torch.int32)
    table = table.view(-1, BLOCK, BLOCK)
    torch._dynamo.maybe_mark_dynamic(table, 0)
    per_batch, per_head = (size > 1 for size in index.shape[:2])

    def in_table(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        batch, head = b if per_batch else torch.zeros_like(b), h if per_head else torch.zeros_like(h)
        return table[index[batch, head, i // BLOCK, j // BLOCK], i % BLOCK, j % BLOCK]

    return _assemble(tiles.partial, tiles.whole, in_table, call.queries, call.keys)


class EvaluatedTiles:
    """Which tiles of a mask are allowed in part, and which whole; known once `evaluate` has gone through them."""

    def __init__(self, call: AttentionCall) -> None:
        assert call.mask is not None
        self.call = call
        grid = TileGrid(call.queries, call.keys, BLOCK, BLOCK)
        batch_heads = call.allowed(call.tile((0, 1), (0, 1))).shape[:2]  # each the whole number, or 1 for all alike
        shape = (*batch_heads, len(grid.first_queries), len(grid.first_keys))
        bounds = call.mask.bounds(grid)
        any_allowed, self.whole = (
            call.broadcast_to_batch(bound.expand(*bound.shape[:-2], *shape[2:])).expand(shape).to(call.q.device).clone()
            for bound in (bounds.any_allowed, bounds.all_allowed)
        )
        _look_at_the_ends(self.whole, call.queries, call.keys)
        self.partial = any_allowed & ~self.whole

    def evaluate(self) -> Iterator[tuple[tuple[slice, ...], Tensor]]:
        """Evaluate the tiles that the bounds leave open; yields where they are, and their pairs."""
        is_open = self.partial.clone()
        for top, bottom, left, right in _strips(is_open.flatten(0, 1).any(0).tolist(), is_open.shape[:2].numel()):
            here = (slice(None), slice(None), slice(top, bottom), slice(left, right))
            tiles = _tiles(self.call, top, bottom, left, right)
            some, every = tiles.any(5).any(3), tiles.all(5).all(3)
            self.whole[here] |= is_open[here] & every
            self.partial[here] &= some & ~every
            yield here, tiles


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # the next call of the same window may be one with gradients
def _band_blocks(limits: BandLimits, queries: int, keys: int, device: torch.device) -> Any:
    """The block mask of a window, whose limits tell everything about each tile."""
    nearest, farthest = limits
    nearest = -queries if nearest is None else nearest
    (first_row, last_row), (first_column, last_column) = _ends(queries, device), _ends(keys, device)
    low, high = first_column - last_row[:, None], last_column - first_row[:, None]  # key less query, in each tile
    touched, whole = (high >= nearest) & (low <= farthest), (low >= nearest) & (high <= farthest)
    _look_at_the_ends(whole, queries, keys)

    def in_band(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j - i >= nearest) & (j - i <= farthest)

    return _assemble((touched & ~whole)[None, None], whole[None, None], in_band, queries, keys)


def _ends(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the last row, or column, of each tile."""
    first = torch.arange(0, size, BLOCK, device=device)
    return first, (first + BLOCK - 1).clamp(max=size - 1)


def _look_at_the_ends(whole: Tensor, queries: int, keys: int) -> None:
    """No tile that reaches beyond the last query or key is whole: the kernel looks at its pairs."""
    if queries % BLOCK:
        whole[..., -1, :] = False
    if keys % BLOCK:
        whole[..., -1] = False


def _strips(is_open: list[list[bool]], num_masks: int) -> list[tuple[int, int, int, int]]:
    """(top, bottom, left, right), in tiles: the parts of the square that are evaluated at once, for so many masks."""
    strips: list[tuple[int, int, int, int]] = []
    for row, columns in enumerate(is_open):
        if not any(columns):
            continue
        left, right = columns.index(True), len(columns) - columns[::-1].index(True)
        if strips:
            top, bottom, first, last = strips[-1]
            first, last = min(first, left), max(last, right)
            if bottom == row and num_masks * (row + 1 - top) * (last - first) * BLOCK * BLOCK <= MAX_EVALUATED_PAIRS:
                strips[-1] = (top, row + 1, first, last)
                continue
        strips.append((row, row + 1, left, right))
    return strips


def _tiles(call: AttentionCall, top: int, bottom: int, left: int, right: int) -> Tensor:
    """The pairs of a part of the square, ``(batch, heads, tiles, BLOCK, tiles, BLOCK)``; none beyond its end."""
    rows, columns = (top * BLOCK, min(bottom * BLOCK, call.queries)), (left * BLOCK, min(right * BLOCK, call.keys))
    allowed = call.allowed(call.tile(rows, columns))
    batch, heads = allowed.shape[:2]
    allowed = allowed.expand(batch, heads, rows[1] - rows[0], columns[1] - columns[0])
    missing = bottom * BLOCK - rows[1], right * BLOCK - columns[1]
    allowed = F.pad(allowed, (0, missing[1], 0, missing[0])) if any(missing) else allowed
    return allowed.reshape(batch, heads, bottom - top, BLOCK, right - left, BLOCK)


def _distinct(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The tiles that differ, ``(tiles, pairs)``, and for each tile its place among them."""
    if not len(tiles):
        return tiles, torch.zeros(0, dtype=torch.int64, device=tiles.device)
    tiles = tiles.contiguous()
    generator = torch.Generator(device="cpu").manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (WORDS,), generator=generator).to(tiles.device)
    hashes = (tiles.view(torch.int64) * factors).sum(-1)
    different, place = torch.unique(hashes, return_inverse=True)
    first = torch.full_like(different, len(tiles)).scatter_reduce(
        0, place, torch.arange(len(tiles), device=tiles.device), "amin"
    )
    table = tiles[first]
    if torch.equal(table[place], tiles):
        return table, place
    return tiles, torch.arange(len(tiles), device=tiles.device)  # two tiles have one hash: nothing is stored once


def _assemble(partial: Tensor, whole: Tensor, predicate: Predicate, queries: int, keys: int) -> Any:
    """The block mask of tiles that are allowed in part, pair by pair as the function says, or whole."""
    from torch.nn.attention.flex_attention import BlockMask

    parts = [(blocks.sum(-1, dtype=torch.int32), _places(blocks)) for blocks in (partial, whole)]
    (some, some_at), (every, every_at) = parts
    return BlockMask.from_kv_blocks(
        some, some_at, every, every_at, BLOCK_SIZE=BLOCK, mask_mod=predicate, seq_lengths=(queries, keys)
    )


def _places(blocks: Tensor) -> Tensor:
    """For each row of tiles the columns of those that are set, the first ones first, and then the others."""
    return blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
