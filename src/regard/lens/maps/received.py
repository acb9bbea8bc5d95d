"""Sums over the queries for each key, from the transposed attention.

The weights w_ij = exp(s_ij - d_i) on key j, with the log denominator d_i of row i, sum to exp(logsumexp_i(s_ij - d_i)).
That is the lse of the attention whose queries are the keys and whose keys are the queries, with -d_i added to the
scores of query i. In it key j attends to the queries that may attend to j: the mask is transposed, and for a causal
mask both orders are reversed, so that it is causal again. Its output is the mean of the queries' values x_i under the
weights on key j: times their sum, it is sum_i w_ij x_i. With the gradients of the output as x, that is the gradient of
the value of key j.
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
from regard.lens.maps.prepared import PreparedAttention
from regard.lens.maps.streaming import MAX_LOG, score_chunks


def received(prepared: PreparedAttention, log_denominator: Tensor, rows: Tensor | None = None) -> Tensor:
    """The sum over the queries of the weights on each key, (batch, heads, keys); 0 for a key of no query.

    Args:
        prepared: the attention.
        log_denominator: see `PreparedAttention.log_denominator`.
        rows: (batch, queries), 0 or more: a factor for the weights of each query.
    """
    return _sum_over_queries(prepared, log_denominator, None, rows)[..., 0]


def received_values(prepared: PreparedAttention, log_denominator: Tensor, values: Tensor) -> Tensor:
    """sum_i w_ij x_i for each key j, (batch, heads, keys, width): transposed weights @ values; 0 for a key of no query.

    Args:
        prepared: the attention.
        log_denominator: see `PreparedAttention.log_denominator`.
        values: the x_i, (batch, heads, queries, width), finite, in the dtype of the prepared call.
    """
    return _sum_over_queries(prepared, log_denominator, values, None)


def _sum_over_queries(
    prepared: PreparedAttention, log_denominator: Tensor, values: Tensor | None, rows: Tensor | None
) -> Tensor:
    """(batch, heads, keys, width); without values, those of a single column of ones."""
    call = prepared.call
    log_rows = None if rows is None else rows.to(log_denominator.dtype).log()[:, None]
    if not prepared.fused or call.bias is not None:
        return _sum_in_chunks(prepared, log_denominator, values, log_rows)
    offset = (-log_denominator if log_rows is None else log_rows - log_denominator).clamp(min=-MAX_LOG)
    k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1) if call.grouped else call.k
    masks, open_keys = _split_key_masks(call)
    # Whether the first keys have the most queries: the kernel's causal flag needs the other order.
    flip = any(isinstance(mask, Band) and mask.before is None for mask in masks)
    q = call.q
    # Ones show whether any query attends to a key: as wide as q, which copies nothing, or one column beside the values.
    ones = q.new_ones(1, 1, q.shape[-2], q.shape[-1] if values is None else 1).expand(*q.shape[:2], -1, -1)
    x = ones if values is None else torch.cat([values, ones], -1)
    if flip:
        q, k, offset, x = q.flip(-2), k.flip(-2), offset.flip(-1), x if values is None else x.flip(-2)
    transposed_masks = [_transpose(mask, call.queries, call.keys, flip=flip) for mask in masks]
    mask = reduce(and_, transposed_masks) if transposed_masks else None
    transposed = AttentionCall.from_inputs(k, q, x, mask, scale=call.scale)
    choice = choose(transposed)
    if choice.kernel in ("bands", "packed"):
        # Windows are faster without a bias: one more feature adds the offset.
        k = torch.cat([k, k.new_ones(1).expand(*k.shape[:-1], 1)], -1)
        q = torch.cat([q, (offset / call.scale)[..., None]], -1)
        transposed = replace(transposed, q=k, k=q)
    else:
        # PyTorch's kernels return an lse with the heads on the last axis in memory. A bias in that order would be
        # copied for every pair.
        transposed = replace(transposed, bias=offset.contiguous()[:, :, None])
        choice = choose(transposed)
    output, lse = flash.run(transposed, choice.schedule)
    sums = lse.exp()[..., None] if values is None else lse.exp()[..., None] * output[..., :-1]
    sums = sums.masked_fill_(output[..., -1:] < 0.5, 0.0)
    sums = sums.flip(-2) if flip else sums
    return sums if open_keys is None else sums.masked_fill_(~open_keys[..., None], 0.0)


def _sum_in_chunks(
    prepared: PreparedAttention, log_denominator: Tensor, values: Tensor | None, log_rows: Tensor | None
) -> Tensor:
    """The same for scores that the fused kernel does not support; `log_rows` is (batch, 1, queries)."""
    call = prepared.call
    width = 1 if values is None else values.shape[-1]
    total = torch.zeros(*call.q.shape[:2], call.keys, width, dtype=torch.float64, device=call.q.device)
    subtract = (log_denominator if log_rows is None else log_denominator - log_rows).clamp(max=MAX_LOG)
    for block, scores in score_chunks(prepared, subtract):
        weights = scores.exp_()
        part = weights.sum(-2)[..., None] if values is None else weights.mT @ block.take_queries(values)
        block.add_to_keys(total, part.to(total.dtype))
    return total


def _split_key_masks(call: AttentionCall) -> tuple[list[Mask], Tensor | None]:
    """The masks that depend on the query, and the keys that all other masks allow, (batch, heads, keys).

    A key that is blocked for every query receives nothing; its sum is set to 0 at the end.
    """
    masks, open_keys = [], None
    for mask in conjuncts(call.mask):
        allowed = call.allowed(call.tile((0, min(2, call.queries)), (0, call.keys)), mask)
        if allowed.shape[-2] == 1:
            open_keys = allowed[..., 0, :] if open_keys is None else open_keys & allowed[..., 0, :]
        else:
            masks.append(mask)
    return masks, open_keys


def _transpose(mask: Mask, queries: int, keys: int, *, flip: bool) -> Mask:
    """The transposed mask; if a kernel supports the kind of mask, the result is of that kind too."""
    if isinstance(mask, Documents) and mask.keys is not None:
        ids = mask.keys, mask.ids
        return Documents(*(t.flip(-1) for t in ids)) if flip else Documents(*ids)
    if isinstance(mask, Documents) and queries == keys:
        return Documents(mask.ids.flip(-1)) if flip else mask
    if isinstance(mask, Band):
        # Query i may attend to key j where first - before < j - i <= first + after.
        first = mask.query_offset(queries, keys)
        if flip:
            return Band(mask.before, mask.after, queries - keys + first)
        if mask.before is not None:
            return Band(mask.after + 1, mask.before - 1, -first)
    return TransposedMask(mask, flip)


@dataclass(frozen=True, eq=False, repr=False)
class TransposedMask(Mask):
    """Another mask with queries and keys exchanged, and both in reverse order if `flip` is set."""

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
        bounds = self.other.bounds(_TransposedGrid(grid, self.flip))
        return TileBounds(bounds.any_allowed.transpose(-1, -2), bounds.all_allowed.transpose(-1, -2))

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
        """The other mask and the word transposed."""
        return f"{self.other!r} transposed"


class _TransposedGrid(TileGrid):
    """The grid of a transposed mask in the coordinates of the other mask."""

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
