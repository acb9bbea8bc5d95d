"""Schedules: the blocks of rows and keys to compute, so that what the mask blocks is not computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.row_groups import blocks_of_tile, merge_rows
from regard.attention.kernels.score_block import ScoreBlock
from regard.attention.mask.base import And, Mask
from regard.attention.mask.documents import DocumentRun, Documents
from regard.attention.mask.geometry import TileBounds, TileGrid
from regard.attention.mask.kinds import Band

BandLimits = tuple[int | None, int]
"""(nearest, farthest): query i may attend to keys i + nearest to i + farthest; nearest None: from the first key."""

TILE_ROWS, TILE_COLUMNS = 256, 64
MAX_STACKED_BLOCKS = 32
"""The largest number of blocks of a band that are computed together."""
MAX_PACKED_TOKENS = 8192
"""The largest number of tokens of short documents that are computed together: memory does not grow with the batch."""
MAX_BIAS_PAIRS = 2**18
"""The largest number of pairs of short documents that are computed together where there is a bias."""
EVAL_KEYS = 2048
"""How many keys of a block a mask is evaluated for at once, so that its intermediate tensors stay in the CPU caches."""


Schedule = Callable[[AttentionCall], Iterator[ScoreBlock]]


def single_block(call: AttentionCall, *, causal: bool = False, keys: Mask | None = None) -> Iterator[ScoreBlock]:
    """Every pair in one block, with the kernel's causal flag and a mask that is the same for every query."""
    yield full_block(call, causal=causal, mask=keys)


def full_block(call: AttentionCall, *, causal: bool = False, mask: Mask | None = None) -> ScoreBlock:
    """The block of every pair."""
    allowed = None if mask is None else call.allowed(call.full_tile, mask)
    return ScoreBlock((0, call.queries), (0, call.keys), allowed, causal)


def conjuncts(mask: Mask | None) -> list[Mask]:
    """The masks that ``&`` joins."""
    if mask is None:
        return []
    return [*conjuncts(mask.left), *conjuncts(mask.right)] if isinstance(mask, And) else [mask]


def band_limits(masks: Sequence[Mask], queries: int, keys: int) -> BandLimits:
    """The keys that query i may attend to under all these windows and causal masks, counted from i."""
    nearest, farthest = None, keys
    for mask in masks:
        assert isinstance(mask, Band)
        first = mask.query_offset(queries, keys)
        farthest = min(farthest, first + mask.after)
        if mask.before is not None:
            start = first - mask.before + 1
            nearest = start if nearest is None else max(nearest, start)
    return nearest, farthest


def band_ranges(
    mask: Mask | None, queries: int, keys: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor] | None:
    """For each query the first key that it may attend to, and the key after the last; 0 and 0 where there is none.

    None for masks other than windows and causal masks, whose pairs must be looked at.
    """
    masks = conjuncts(mask)
    if not all(isinstance(part, Band) for part in masks):
        return None
    nearest, farthest = band_limits(masks, queries, keys)
    query = torch.arange(queries, device=device)
    first = torch.zeros_like(query) if nearest is None else (query + nearest).clamp(0, keys)
    end = (query + farthest + 1).clamp(0, keys)
    empty = end <= first
    return first.masked_fill(empty, 0), end.masked_fill(empty, 0)


def bands(call: AttentionCall) -> Iterator[ScoreBlock]:
    """A window: each block of rows against the neighbouring keys that it may attend to."""
    limits = band_limits(conjuncts(call.mask), call.queries, call.keys)
    yield from _band(limits, (0, call.queries), (0, call.keys), call)


def _band(
    limits: BandLimits, rows: tuple[int, int], columns: tuple[int, int], call: AttentionCall, batch: int | None = None
) -> Iterator[ScoreBlock]:
    nearest, farthest = limits
    if nearest is None or nearest <= columns[0] - rows[1] + 1:
        nearest, limits = None, (None, farthest)
        if farthest >= columns[1] - 1 - rows[0]:
            yield ScoreBlock(rows, columns, batch=batch)
            return
        if farthest == columns[0] - rows[0]:
            yield ScoreBlock(rows, columns, causal=True, batch=batch)
            return
    # High blocks compute more pairs than needed, low blocks make small products: a quarter of the window. The kernel
    # itself takes 32 rows at a time where there are fewer than 192.
    height = TILE_ROWS if nearest is None else min(TILE_ROWS, max(32, (farthest - nearest + 1) // 4))
    # The blocks of a stack lie on the batch axis, so each batch row has stacks of its own.
    max_blocks = MAX_STACKED_BLOCKS if call.bias is None else 1
    for row in range(len(call.q)) if batch is None and max_blocks > 1 else [batch]:
        yield from _stacked(limits, rows, columns, height, max_blocks, call.q.device, row)


def _stacked(
    limits: BandLimits,
    rows: tuple[int, int],
    columns: tuple[int, int],
    height: int,
    max_blocks: int,
    device: torch.device,
    batch: int | None,
) -> Iterator[ScoreBlock]:
    """The blocks of a band; neighbours that are equal but for their place become stacks."""
    nearest, farthest = limits
    last: ScoreBlock | None = None
    for top in range(rows[0], rows[1], height):
        bottom = min(top + height, rows[1])
        left = columns[0] if nearest is None else max(columns[0], top + nearest)
        right = min(columns[1], bottom + farthest)
        if left >= right:
            continue
        if last is not None:
            # Blocks inside the band have the same mask: it is made once, and they are computed together.
            shift = last.num_stacked * height
            next_in_stack = (last.rows[0] + shift, last.rows[1] + shift, last.keys[0] + shift, last.keys[1] + shift)
            if next_in_stack == (top, bottom, left, right) and last.num_stacked < max_blocks:
                last = replace(last, num_stacked=last.num_stacked + 1)
                continue
            yield last
        allowed = _diagonal_mask(nearest, farthest, bottom - top, left - top, right - top, device)
        last = ScoreBlock((top, bottom), (left, right), allowed, batch=batch)
    if last is not None:
        yield last


def _diagonal_mask(
    nearest: int | None, farthest: int, rows: int, left: int, right: int, device: torch.device
) -> Tensor | None:
    """The mask of a block for keys left to right, counted from its first row; None if every pair may attend."""
    distance = torch.arange(left, right, device=device) - torch.arange(rows, device=device)[:, None]
    allowed = distance <= farthest if nearest is None else (distance <= farthest) & (distance >= nearest)
    return None if allowed.all() else allowed[None, None]


def documents(call: AttentionCall) -> Iterator[ScoreBlock]:
    """Packed documents: each against itself, within the causal masks and windows that are joined by ``&``."""
    masks = conjuncts(call.mask)
    (packed,) = (mask for mask in masks if isinstance(mask, Documents))
    limits = band_limits([mask for mask in masks if mask is not packed], call.queries, call.keys)
    all_runs = packed.runs()
    # The mask's batch axis is the last one, whatever axes come before it.
    for batch in [None] if packed.batch_size is None else range(len(call.q)):
        runs = all_runs[0 if batch is None else batch % len(all_runs)]
        if runs is None:
            yield from tiles(call, only_batch=batch)
        for run in runs or []:
            yield from _run_blocks(limits, run, call, batch)


def _run_blocks(limits: BandLimits, run: DocumentRun, call: AttentionCall, batch: int | None) -> Iterator[ScoreBlock]:
    """The blocks of documents of one length; where a document is one block, many documents become a stack."""
    height, width = run.queries[1] - run.queries[0], run.keys[1] - run.keys[0]
    max_blocks = max(1, MAX_PACKED_TOKENS // height)
    if call.bias is not None:
        max_blocks = min(max_blocks, max(1, MAX_BIAS_PAIRS // (height * width)))
    # The limits cut the same pairs from every document if queries and keys move on together from one to the next.
    same_mask = height == width or (limits[0] is None and limits[1] >= call.keys)
    stacked = same_mask and min(max_blocks, run.num_documents) > 1
    # The blocks of a stack lie on the batch axis, so each batch row has stacks of its own.
    for row in range(len(call.q)) if stacked and batch is None else [batch]:
        first = list(islice(_band(limits, run.queries, run.keys, call, row), 2)) if stacked else []
        if len(first) == 1 and first[0].rows == run.queries:
            yield from replace(first[0], num_stacked=run.num_documents, stack_stride=width).split(max_blocks)
        else:
            for n in range(run.num_documents):
                yield from _band(limits, _shifted(run.queries, n * height), _shifted(run.keys, n * width), call, row)


def _shifted(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def tiles(call: AttentionCall, *, only_batch: int | None = None) -> Iterator[ScoreBlock]:
    """Any mask: each block of rows against the keys that some row of it may attend to; `row_groups` has the rows.

    The mask is evaluated in the tiles that its bounds leave open. The blocks of a batch row depend on its own mask
    only: other rows of the batch move its result by no more than PyTorch's own matrix products do, which may round
    otherwise where the bytes of a batch row are no multiple of 64.

    Args:
        call: the attention.
        only_batch: the batch row to make blocks for; all by default.
    """
    # A bias takes memory for every head of a block, so blocks are lower with one.
    height = TILE_ROWS if call.bias is None else TILE_ROWS // 4
    blocks = _tile_blocks(call, height, only_batch)
    for block in merge_rows(blocks, max_rows=None if call.bias is None else height):
        # Rows are copied for one batch row at a time, so that where they lie in memory does not depend on the batch.
        by_batch = isinstance(block.rows, Tensor) and block.batch is None
        yield from (replace(block, batch=n) for n in range(len(call.q))) if by_batch else (block,)


def _tile_blocks(call: AttentionCall, height: int, only_batch: int | None) -> Iterator[ScoreBlock]:
    grid = TileGrid(call.queries, call.keys, height, TILE_COLUMNS)
    bounds = call.mask.bounds(grid) if call.mask is not None else TileBounds.full()
    num_tiles = (len(grid.first_queries), len(grid.first_keys))
    any_allowed, all_allowed = (
        call.broadcast_to_batch(bound.expand(*bound.shape[:-2], *num_tiles)).to(call.q.device)
        for bound in (bounds.any_allowed, bounds.all_allowed)
    )
    for row, top in enumerate(range(0, call.queries, height)):
        rows = (top, min(top + height, call.queries))
        allowed = _evaluated(call, rows, any_allowed[:, :, row], all_allowed[:, :, row])
        own_blocks = len(allowed) > 1 or only_batch is not None
        for batch in range(len(allowed)) if only_batch is None else [only_batch]:
            yield from blocks_of_tile(rows, allowed[batch : batch + 1], batch if own_blocks else None)


def _evaluated(call: AttentionCall, rows: tuple[int, int], any_allowed: Tensor, all_allowed: Tensor) -> Tensor:
    """The mask of some rows, evaluated where the bounds leave it open; bounds are (batch, heads, tiles)."""
    allowed = all_allowed.repeat_interleave(TILE_COLUMNS, -1)[..., None, : call.keys]
    spans = _key_spans((any_allowed & ~all_allowed).flatten(0, 1).any(0).tolist(), call.keys)
    spans = [(at, min(at + EVAL_KEYS, stop)) for start, stop in spans for at in range(start, stop, EVAL_KEYS)]
    parts = [call.allowed(call.tile(rows, span)) for span in spans]
    if parts:
        lead = torch.broadcast_shapes(allowed.shape[:2], *(part.shape[:2] for part in parts))  # type: ignore[no-untyped-call]
        allowed = allowed.expand(*lead, rows[1] - rows[0], call.keys).clone()
    for (start, stop), part in zip(spans, parts, strict=True):
        allowed[..., start:stop] = part
    return allowed


def _key_spans(is_open: list[bool], columns: int) -> list[tuple[int, int]]:
    """The (start, stop) columns of the tiles that are open, neighbours joined."""
    spans: list[tuple[int, int]] = []
    for n, tile_is_open in enumerate(is_open):
        if tile_is_open:
            start, stop = n * TILE_COLUMNS, min((n + 1) * TILE_COLUMNS, columns)
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], stop)
            else:
                spans.append((start, stop))
    return spans
