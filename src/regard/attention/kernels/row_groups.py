"""Rows in an order of their own: those of a tile that attend to other keys than their neighbours.

Rows of several tiles that attend to the same keys become one block. Where every other key is left (the strided pattern
of Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 4.2), even and odd rows need half of
the keys each, and together all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.kernels.score_block import Places, ScoreBlock

MAX_GROUPS = 16
"""The largest number of groups into which the rows of a tile are divided."""
MAX_MERGED_ROWS = 2048
"""The largest number of rows that are computed together because they attend to the same keys."""
MAX_WAITING = 64
"""The largest number of groups that wait for further rows."""


def blocks_of_tile(rows: tuple[int, int], allowed: Tensor, batch: int | None) -> list[ScoreBlock]:
    """The blocks of some neighbouring rows: one, or one for each group of rows if that saves a quarter of the pairs.

    Args:
        rows: (start, stop).
        allowed: (1, heads or 1, rows or 1, keys): the mask.
        batch: the batch row; None for all.
    """
    whole = _used_keys(rows, allowed, batch)
    if whole is None:
        return []
    mask = whole.allowed
    if mask is None or mask.shape[1] != 1 or mask.shape[2] == 1 or 4 * int(mask.count_nonzero()) > 3 * mask.numel():
        return [whole]
    groups = _similar_rows(mask[0, 0])
    parts = (_used_keys(group + rows[0], allowed.index_select(2, group), batch) for group in groups)
    blocks = [part for part in parts if part is not None]
    return blocks if 4 * sum(block.pairs for block in blocks) <= 3 * whole.pairs else [whole]


def _used_keys(rows: Places, allowed: Tensor, batch: int | None) -> ScoreBlock | None:
    """The block of some rows against the keys that some row may attend to; None if there are none."""
    used = allowed.flatten(0, 2).any(0).nonzero()[:, 0]
    if not len(used):
        return None
    first, last = int(used[0]), int(used[-1])
    if 4 * len(used) > 3 * (last - first):
        # With few gaps, a view of all keys between is cheaper than a copy of the used ones.
        keys: Places = (first, last + 1)
        allowed = allowed[..., first : last + 1]
    else:
        keys, allowed = used, allowed.index_select(-1, used)
    return ScoreBlock(rows, keys, None if bool(allowed.all()) else allowed, batch=batch)


def _similar_rows(allowed: Tensor) -> list[Tensor]:
    """The indices of rows in groups: rows that share half of their keys with the first of their group.

    Args:
        allowed: (rows, keys).
    """
    numbers = allowed.float()  # sums below 2**24 are exact
    counts = numbers.sum(-1)
    left = counts > 0
    groups: list[Tensor] = []
    while bool(left.any()):
        leader = int(left.byte().argmax())
        shared = 2 * (numbers @ numbers[leader])
        group = left & (shared >= counts) & (shared >= counts[leader])
        # Rows that are all different would have a group each: they stay together.
        if len(groups) == MAX_GROUPS - 1 or 2 * MAX_GROUPS * int(group.sum()) < len(allowed):
            group = left
        groups.append(group.nonzero()[:, 0])
        left = left & ~group
    return groups


def merge_rows(blocks: Iterator[ScoreBlock], max_rows: int | None = None) -> Iterator[ScoreBlock]:
    """The blocks, where groups of rows of one batch row that attend to the same keys wait for one another.

    A block of many rows takes its keys once, and the kernel is faster on it.

    Args:
        blocks: the blocks of one tile after the other.
        max_rows: the largest number of rows of a block; `MAX_MERGED_ROWS` by default.
    """
    max_rows = MAX_MERGED_ROWS if max_rows is None else max_rows
    waiting: dict[tuple[int, ...], ScoreBlock] = {}
    for block in blocks:
        if block.allowed is not None or not (isinstance(block.keys, Tensor) and isinstance(block.rows, Tensor)):
            yield block
            continue
        place = -1 if block.batch is None else block.batch, len(block.keys), int(block.keys[0]), int(block.keys.sum())
        merged, other = block, waiting.pop(place, None)
        if other is not None:
            assert isinstance(other.keys, Tensor)
            assert isinstance(other.rows, Tensor)
            if other.height + block.height <= max_rows and torch.equal(other.keys, block.keys):
                merged = replace(other, rows=torch.cat([other.rows, block.rows]))
            else:
                yield other
        waiting[place] = merged
        if len(waiting) > MAX_WAITING:
            yield waiting.pop(next(iter(waiting)))
    yield from waiting.values()
