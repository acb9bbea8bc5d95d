"""Attention received by each key: the map turned around.

The weights w_ij = exp(s_ij - norm_i) on key j sum to exp(logsumexp_i(s_ij - norm_i)). That is the lse of the attention
whose queries are the keys and whose keys are the queries, with -norm_i added to the scores of the latter. In it key
j looks at the queries that may look at j: the mask turned around, and for a causal mask both orders reversed, so
that it is causal again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.kernels import flash
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import conjuncts
from regard.attention.mask.base import Mask
from regard.attention.mask.documents import Documents
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid
from regard.attention.mask.kinds import Band
from regard.attention.plan import choose
from regard.lens.maps import streaming
from regard.lens.maps.prepared import PreparedAttention

__all__ = ["TransposedMask", "received"]

NOTHING = -1e30
"""The logarithm of no weight at all, which every sum survives."""


def received(prepared: PreparedAttention, norm: Tensor, rows: Tensor | None = None) -> Tensor:
    """The sum over the queries of the weights on each key, (batch, heads, keys); 0 for a key that nobody looks at.

    Args:
        prepared: the map.
        norm: see `PreparedAttention.norm`.
        rows: (batch, queries), 0 or more: what the weights of each query count.
    """
    call = prepared.call
    logs = None if rows is None else rows.to(norm.dtype).log()[:, None]
    if not prepared.fused or call.bias is not None:
        return streaming.received(prepared, norm, logs)
    term = (-norm if logs is None else logs - norm).clamp(min=NOTHING)
    k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1) if call.grouped else call.k
    masks, open_keys = _apart(call)
    # Whether the first keys have most lookers: the kernel's flag for causal wants the other order.
    flip = any(isinstance(mask, Band) and mask.before is None for mask in masks)
    q = call.q
    if flip:
        q, k, term = q.flip(-2), k.flip(-2), term.flip(-1)
    turned = [_turn(mask, call.queries, call.keys, flip=flip) for mask in masks]
    mask = reduce(and_, turned) if turned else None
    # Of the output only one thing is wanted: whether anybody looks at a key.
    ones = q.new_ones(1, 1, q.shape[-2], q.shape[-1]).expand(*q.shape[:2], -1, -1)
    around = AttentionCall.from_inputs(k, q, ones, mask, scale=call.scale)
    choice = choose(around)
    if choice.kernel in ("bands", "packed"):
        # Windows go faster without a bias: one more feature adds the term.
        k = torch.cat([k, k.new_ones(1).expand(*k.shape[:-1], 1)], -1)
        q = torch.cat([q, (term / call.scale)[..., None]], -1)
        around = replace(around, q=k, k=q)
    else:
        # PyTorch's kernels give an lse whose heads stand side by side; as a bias, that would be copied for every pair.
        around = replace(around, bias=term.contiguous()[:, :, None])
        choice = choose(around)
    output, lse = flash.run(around, choice.schedule)
    sums = lse.exp().masked_fill_(output[..., 0] < 0.5, 0.0)
    sums = sums.flip(-1) if flip else sums
    return sums if open_keys is None else sums.masked_fill_(~open_keys, 0.0)


def _apart(call: AttentionCall) -> tuple[list[Mask], Tensor | None]:
    """The masks that speak of queries, and the keys that all others leave, (batch, heads, keys).

    A key that is blocked for every query is looked at by nobody, which is said when the sums are there.
    """
    masks, found = [], None
    for mask in conjuncts(call.mask):
        may = call.allowed(call.tile((0, min(2, call.queries)), (0, call.keys)), mask)
        if may.shape[-2] == 1:
            found = may[..., 0, :] if found is None else found & may[..., 0, :]
        else:
            masks.append(mask)
    return masks, found


def _turn(mask: Mask, queries: int, keys: int, *, flip: bool) -> Mask:
    """Who is looked at by whom; the kinds that kernels know stay such."""
    if isinstance(mask, Documents) and mask.keys is not None:
        turned = mask.keys, mask.ids
        return Documents(*(ids.flip(-1) for ids in turned)) if flip else Documents(*turned)
    if isinstance(mask, Documents) and queries == keys:
        return Documents(mask.ids.flip(-1)) if flip else mask
    if isinstance(mask, Band):
        # Query i sees key j where first - before < j - i <= first + after.
        first = mask.query_offset(queries, keys)
        if flip:
            return Band(mask.before, mask.after, queries - keys + first)
        if mask.before is not None:
            return Band(mask.after + 1, mask.before - 1, -first)
    return TransposedMask(mask, flip)


@dataclass(frozen=True, eq=False, repr=False)
class TransposedMask(Mask):
    """Another mask with queries and keys in each other's place, and both in reverse where asked for."""

    other: Mask
    flip: bool

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        """See `Mask.evaluate`."""
        rows, columns = tile.columns, tile.rows
        if self.flip:
            rows = (tile.keys - rows[1], tile.keys - rows[0])
            columns = (tile.queries - columns[1], tile.queries - columns[0])
        t = self.other.evaluate(Tile(tile.keys, tile.queries, rows, columns, tile.device)).transpose(-1, -2)
        return t.flip(-1, -2) if self.flip else t

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        """See `Mask.predicate`."""
        other = self.other.predicate(keys, queries, device)
        if self.flip:
            return lambda b, h, i, j: other(b, h, keys - 1 - j, queries - 1 - i)
        return lambda b, h, i, j: other(b, h, j, i)

    def bounds(self, grid: TileGrid) -> TileBounds:
        """See `Mask.bounds`."""
        known = self.other.bounds(_TransposedGrid(grid, self.flip))
        return TileBounds(known.any_allowed.transpose(-1, -2), known.all_allowed.transpose(-1, -2))

    def validate(self, queries: int, keys: int) -> None:
        """See `Mask.validate`."""
        self.other.validate(keys, queries)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """See `Mask.batch_size`."""
        return self.other.batch_size

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        """See `Mask.shape`."""
        queries, keys = self.other.shape
        return keys, queries

    def __repr__(self) -> str:
        """See `Mask.batch_size`."""
        return f"{self.other!r} turned around"


class _TransposedGrid(TileGrid):
    """The tiles of a turned mask's grid as the other mask counts them."""

    def __init__(self, grid: TileGrid, flip: bool) -> None:
        super().__init__(grid.keys, grid.queries, grid.tile_columns, grid.tile_rows)
        spans = [
            (grid.first_keys, grid.last_keys, grid.keys),
            (grid.first_queries[:, 0], grid.last_queries[:, 0], grid.queries),
        ]
        if flip:
            spans = [(size - 1 - last, size - 1 - first, size) for first, last, size in spans]
        (top, bottom, _), (left, right, _) = spans
        vars(self).update(first_queries=top[:, None], last_queries=bottom[:, None], first_keys=left, last_keys=right)
