"""Schedules: which rows are computed against which keys, so that what the mask blocks is not computed at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from regard.attention.kernels.block import ScoreBlock
from regard.attention.kernels.call import AttentionCall
from regard.attention.mask.base import And, Mask
from regard.attention.mask.documents import DocumentRun, Documents
from regard.attention.mask.geometry import TileBounds, TileGrid
from regard.attention.mask.kinds import Band

__all__ = [
    "BandLimits",
    "Schedule",
    "band_limits",
    "bands",
    "conjuncts",
    "documents",
    "full_block",
    "single_block",
    "tiles",
]

BandLimits = tuple[int | None, int]
"""(nearest, farthest): query i may attend to keys i + nearest to i + farthest; None: from the first key on."""

TILE_ROWS, TILE_COLUMNS = 256, 64
MAX_STACKED_BLOCKS = 32
"""So many blocks of a band are computed together, at most."""
MAX_PACKED_TOKENS = 8192
"""So many tokens of short documents are computed together, at most: memory does not grow with how many there are."""
MAX_BIAS_PAIRS = 2**18
"""Where a bias stands beside them, so many pairs of a query and a key."""
EVAL_KEYS = 2048
"""So many keys of a block are asked for at once, so that what a function computes on the way stays in the caches."""


Schedule = Callable[[AttentionCall], Iterator[ScoreBlock]]


def single_block(call: AttentionCall, *, causal: bool = False, keys: Mask | None = None) -> Iterator[ScoreBlock]:
    """Everything at once, with the kernel's flag for a causal square and a mask that is the same for every query."""
    yield full_block(call, causal=causal, mask=keys)


def full_block(call: AttentionCall, *, causal: bool = False, mask: Mask | None = None) -> ScoreBlock:
    """The one block of everything."""
    may = None if mask is None else call.allowed(call.full_tile, mask)
    return ScoreBlock((0, call.queries), (0, call.keys), may, causal)


def conjuncts(mask: Mask | None) -> list[Mask]:
    """What is joined by ``&``."""
    if mask is None:
        return []
    return [*conjuncts(mask.left), *conjuncts(mask.right)] if isinstance(mask, And) else [mask]


def band_limits(masks: Sequence[Mask], queries: int, keys: int) -> BandLimits:
    """The keys that all these windows and causal masks leave to query i, counted from i."""
    nearest, farthest = None, keys
    for mask in masks:
        assert isinstance(mask, Band)
        first = mask.query_offset(queries, keys)
        farthest = min(farthest, first + mask.after)
        if mask.before is not None:
            start = first - mask.before + 1
            nearest = start if nearest is None else max(nearest, start)
    return nearest, farthest


def bands(call: AttentionCall) -> Iterator[ScoreBlock]:
    """A window: each block of rows against the one run of keys that it reaches."""
    within = band_limits(conjuncts(call.mask), call.queries, call.keys)
    yield from _band(within, (0, call.queries), (0, call.keys), call)


def _band(
    within: BandLimits, rows: tuple[int, int], columns: tuple[int, int], call: AttentionCall, batch: int | None = None
) -> Iterator[ScoreBlock]:
    nearest, farthest = within
    if nearest is None or nearest <= columns[0] - rows[1] + 1:
        nearest, within = None, (None, farthest)
        if farthest >= columns[1] - 1 - rows[0]:
            yield ScoreBlock(rows, columns, batch=batch)
            return
        if farthest == columns[0] - rows[0]:
            yield ScoreBlock(rows, columns, causal=True, batch=batch)
            return
    # High blocks compute more pairs than they need, low ones make small products: a quarter of the window.
    height = TILE_ROWS if nearest is None else min(TILE_ROWS, max(64, (farthest - nearest + 1) // 4))
    # A stack stands on the batch axis, so each batch row has its own.
    most = MAX_STACKED_BLOCKS if call.bias is None else 1
    for each in range(len(call.q)) if batch is None and most > 1 else [batch]:
        yield from _stacked(within, rows, columns, height, most, call.q.device, each)


def _stacked(
    within: BandLimits,
    rows: tuple[int, int],
    columns: tuple[int, int],
    height: int,
    most: int,
    device: torch.device,
    batch: int | None,
) -> Iterator[ScoreBlock]:
    """The blocks of a band, those that are alike together."""
    nearest, farthest = within
    last: ScoreBlock | None = None
    for top in range(rows[0], rows[1], height):
        bottom = min(top + height, rows[1])
        left = columns[0] if nearest is None else max(columns[0], top + nearest)
        right = min(columns[1], bottom + farthest)
        if left >= right:
            continue
        if last is not None:
            # Blocks inside the band are alike: their mask is drawn once, and they are computed together.
            shift = last.num_stacked * height
            alike = (last.rows[0] + shift, last.rows[1] + shift, last.keys[0] + shift, last.keys[1] + shift)
            if alike == (top, bottom, left, right) and last.num_stacked < most:
                last = replace(last, num_stacked=last.num_stacked + 1)
                continue
            yield last
        may = _diagonal(nearest, farthest, bottom - top, left - top, right - top, device)
        last = ScoreBlock((top, bottom), (left, right), may, batch=batch)
    if last is not None:
        yield last


def _diagonal(
    nearest: int | None, farthest: int, rows: int, left: int, right: int, device: torch.device
) -> Tensor | None:
    """The mask of a block of rows against keys left to right, counted from its first row; None if it lets everyone."""
    distance = torch.arange(left, right, device=device) - torch.arange(rows, device=device)[:, None]
    may = distance <= farthest if nearest is None else (distance <= farthest) & (distance >= nearest)
    return None if may.all() else may[None, None]


def documents(call: AttentionCall) -> Iterator[ScoreBlock]:
    """Packed documents: each against itself, within what causal masks and windows beside them leave."""
    masks = conjuncts(call.mask)
    (about,) = (mask for mask in masks if isinstance(mask, Documents))
    near = [mask for mask in masks if mask is not about]
    within = band_limits(near, call.queries, call.keys)
    found = about.runs()
    # The mask speaks of the last batch axis, whatever axes stand before it.
    for batch in [None] if about.batch_size is None else range(len(call.q)):
        runs = found[0 if batch is None else batch % len(found)]
        if runs is None:
            yield from tiles(call, only=batch)
        for run in runs or []:
            yield from _run(within, run, call, batch)


def _run(within: BandLimits, run: DocumentRun, call: AttentionCall, batch: int | None) -> Iterator[ScoreBlock]:
    """The blocks of documents of one length; where one block holds a document, those of many together."""
    height, width = run.queries[1] - run.queries[0], run.keys[1] - run.keys[0]
    most = max(1, MAX_PACKED_TOKENS // height)
    if call.bias is not None:
        most = min(most, max(1, MAX_BIAS_PAIRS // (height * width)))
    # What a reach leaves is the same in each of them if queries move as far as keys from one to the next.
    alike = height == width or (within[0] is None and within[1] >= call.keys)
    stacked = alike and min(most, run.num_documents) > 1
    # A stack stands on the batch axis, so each batch row has its own.
    for each in range(len(call.q)) if stacked and batch is None else [batch]:
        first = list(islice(_band(within, run.queries, run.keys, call, each), 2)) if stacked else []
        if len(first) == 1 and first[0].rows == run.queries:
            yield from replace(first[0], num_stacked=run.num_documents, stack_stride=width).split(most)
        else:
            for n in range(run.num_documents):
                yield from _band(within, _further(run.queries, n * height), _further(run.keys, n * width), call, each)


def _further(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def tiles(call: AttentionCall, *, only: int | None = None) -> Iterator[ScoreBlock]:
    """Any mask: each block of rows against the keys that somebody in it may attend to.

    The mask is evaluated in the tiles of which its bounds do not say enough. What a batch row is computed against
    hangs on its own mask alone, so that it has the same bits in any batch.

    Args:
        call: the attention.
        only: the one batch row to make blocks for; all of them by default.
    """
    # The bias of every head stands beside a block, so that a block with one is lower.
    height = TILE_ROWS if call.bias is None else TILE_ROWS // 4
    grid = TileGrid(call.queries, call.keys, height, TILE_COLUMNS)
    bounds = call.mask.bounds(grid) if call.mask is not None else TileBounds.full()
    across = (len(grid.first_queries), len(grid.first_keys))
    some, every = (
        call.broadcast_to_batch(known.expand(*known.shape[:-2], *across)).to(call.q.device)
        for known in (bounds.any_allowed, bounds.all_allowed)
    )
    for row, top in enumerate(range(0, call.queries, height)):
        rows = (top, min(top + height, call.queries))
        may = _looked_at(call, rows, some[:, :, row], every[:, :, row])
        for batch in range(len(may)) if only is None else [only]:
            block = _used(rows, may[batch : batch + 1], batch if len(may) > 1 or only is not None else None)
            if block is not None:
                yield block


def _looked_at(call: AttentionCall, rows: tuple[int, int], some: Tensor, every: Tensor) -> Tensor:
    """The mask of some rows, evaluated where it is not known; bounds are (batch, heads, tiles)."""
    may = every.repeat_interleave(TILE_COLUMNS, -1)[..., None, : call.keys]
    runs = _runs((some & ~every).flatten(0, 1).any(0).tolist(), call.keys)
    runs = [(at, min(at + EVAL_KEYS, stop)) for start, stop in runs for at in range(start, stop, EVAL_KEYS)]
    parts = [call.allowed(call.tile(rows, run)) for run in runs]
    if parts:
        lead = torch.broadcast_shapes(may.shape[:2], *(part.shape[:2] for part in parts))  # type: ignore[no-untyped-call]
        may = may.expand(*lead, rows[1] - rows[0], call.keys).clone()
    for (start, stop), part in zip(runs, parts, strict=True):
        may[..., start:stop] = part
    return may


def _used(rows: tuple[int, int], may: Tensor, batch: int | None) -> ScoreBlock | None:
    """The block of some rows of one mask, against the keys that are used."""
    used = may.flatten(0, 2).any(0).nonzero()[:, 0]
    if not len(used):
        return None
    first, last = int(used[0]), int(used[-1])
    if 4 * len(used) > 3 * (last - first):
        # Nearly a run: a view of it is cheaper than a copy of its parts.
        keys: tuple[int, int] | Tensor = (first, last + 1)
        may = may[..., first : last + 1]
    else:
        keys, may = used, may.index_select(-1, used)
    return ScoreBlock(rows, keys, None if bool(may.all()) else may, batch=batch)


def _runs(used: list[bool], columns: int) -> list[tuple[int, int]]:
    """Tiles that are used, neighbours joined, as (start, stop) columns."""
    runs: list[tuple[int, int]] = []
    for n, is_used in enumerate(used):
        if is_used:
            start, stop = n * TILE_COLUMNS, min((n + 1) * TILE_COLUMNS, columns)
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop)
            else:
                runs.append((start, stop))
    return runs
