"""Statistics that need every weight: computed a few rows at a time, in memory that is used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention.bias import PositionBias
from regard.attention.kernels.score_block import Places, ScoreBlock, num_places
from regard.attention.steps import grouped_matmul
from regard.lens.maps.prepared import PreparedAttention, apply_softcap_

MAX_LOG = 1e30
"""In place of the logarithm inf: a weight with this log denominator is 0, and no product with it is NaN."""

MIN_CHUNK_ROWS, MAX_CHUNK_ROWS = 16, 256
"""The rows of a chunk of scores. With more, more of a causal chunk would be blocked pairs."""


class TopWeights(NamedTuple):
    """The keys that each query attends to most."""

    weights: Float[Tensor, "batch heads queries k"]
    """In falling order; 0 where there is nothing more to attend to."""
    keys: Int[Tensor, "batch heads queries k"]
    """The key of each weight; -1 where there is nothing more to attend to."""


def check_k(shape: torch.Size, k: int) -> None:
    """Raise if a map of a shape has not so many keys.

    Raises:
        ValueError: k below 1, or above the number of keys.
    """
    if not 1 <= k <= shape[3]:
        raise ValueError(f"top({k}): k is from 1 to the number of keys, {shape[3]}")


def check_cells(shape: torch.Size, rows: int, columns: int) -> None:
    """Raise if a map of a shape cannot be cut into so many cells.

    Raises:
        ValueError: more rows than queries, or more columns than keys.
    """
    for name, n, size in (("rows", rows, shape[2]), ("columns", columns, shape[3])):
        if not 1 <= n <= size:
            raise ValueError(f"pooled({rows}, {columns}): {name} are from 1 to {size}, for a map {shape[2:]}")


def score_chunks(prepared: PreparedAttention, subtract: Tensor | None = None) -> Iterator[tuple[ScoreBlock, Tensor]]:
    """Blocks of a few rows and heads, each with its scores (batch, heads, rows, columns), -inf where blocked.

    Every row of a head that is not empty comes once, with every key that it may attend to. The caller may change the
    scores; the next ones are written to the same memory.

    Args:
        prepared: the attention.
        subtract: (batch, heads, queries), finite: a number to subtract from all scores of a row.
    """
    call = prepared.call
    q, k = call.q * call.scale, call.k
    if subtract is not None and call.softcap is None:
        # One more feature subtracts the number in the product itself.
        q, k = torch.cat([q, -subtract[..., None]], -1), torch.cat([k, k.new_ones(1).expand(*k.shape[:-1], 1)], -1)
    buffer = call.q.new_empty(0)
    for block, diagonal in _row_chunks(prepared):
        chunk_q = block.take_queries(q)
        count = chunk_q.shape[:-1].numel() * block.columns
        if buffer.numel() < count:
            buffer = call.q.new_empty(count)
        scores = grouped_matmul(chunk_q, block.take_keys(k).transpose(-1, -2), out=buffer[:count])
        scores = apply_softcap_(scores, call.softcap)
        if subtract is not None and call.softcap is not None:
            scores.sub_(block.take_queries(subtract)[..., None])
        bias = call.bias_for(block)
        if bias is not None:
            scores.add_(bias)
        if block.allowed is not None:
            scores.masked_fill_(~block.allowed, -torch.inf)
        if diagonal is not None:
            corner = scores[..., diagonal:]
            later = torch.ones(corner.shape[-2:], dtype=torch.bool, device=corner.device).triu(1)
            corner.masked_fill_(later, -torch.inf)
        yield block, scores


def _row_chunks(prepared: PreparedAttention) -> Iterator[tuple[ScoreBlock, int | None]]:
    """The schedule's blocks, cut into chunks of a few rows and heads and without the kernel's causal flag.

    A chunk of a causal block ends at the last key of its last row. The number returned with it is the last key of its
    first row: each row may attend to one key more than the row before.
    """
    call = prepared.call
    for block in (single for stack in prepared.schedule(call) for single in stack.unstack()):
        height, parts = _chunk_sizes(prepared, block)
        for top, part in block.chunks_of_rows(height):
            allowed, keys, diagonal = part.allowed, part.keys, None
            if block.causal and not isinstance(keys, Tensor):
                if top + 1 < block.columns:
                    diagonal = top
                keys = (keys[0], min(keys[1], keys[0] + top + part.height))
                allowed = allowed if allowed is None else allowed[..., : keys[1] - keys[0]]
            for batch in range(len(call.q)) if block.batch is None else [block.batch]:
                for heads in range(parts):
                    chunk = ScoreBlock(part.rows, keys, batch=batch, heads=(heads, parts))
                    own = allowed if allowed is None else chunk.take_heads(allowed)
                    yield replace(chunk, allowed=own), diagonal


def _chunk_sizes(prepared: PreparedAttention, block: ScoreBlock) -> tuple[int, int]:
    """The most rows of a chunk of a block, and into how many parts its heads are divided.

    Many rows of one head are multiplied twice as fast as few rows of many: its keys stay in the CPU's cache.
    """
    call = prepared.call
    columns, heads, kv_heads = max(1, block.columns), call.q.shape[1], call.k.shape[1]
    if isinstance(call.bias, PositionBias):
        # It is computed for all heads at once.
        return max(MIN_CHUNK_ROWS, prepared.scores_at_once // (heads * columns)), 1
    group = heads // kv_heads
    height = min(MAX_CHUNK_ROWS, max(MIN_CHUNK_ROWS, prepared.scores_at_once // (group * columns)))
    most = prepared.scores_at_once // (group * min(height, max(1, block.height)) * columns)
    together = max(count for count in range(1, kv_heads + 1) if kv_heads % count == 0 and count <= max(1, most))
    return height, kv_heads // together


def top(prepared: PreparedAttention, k: int, log_denominator: Tensor) -> TopWeights:
    """The k keys of each row with the largest weights.

    Scores are compared, which have the order of the weights. The keys are divided into groups, each of every n-th key.
    The k largest scores of a row are in the k groups whose maxima are the largest, and these maxima are found by
    comparing runs of keys.

    Args:
        prepared: the attention.
        k: the number of keys.
        log_denominator: see `PreparedAttention.log_denominator`.
    """
    largest = LargestScores(prepared, k)
    for block, scores in score_chunks(prepared):
        largest.add(block, scores)
    return largest.weights(log_denominator)


class LargestScores:
    """The largest scores of each row and their keys, from one chunk of scores after the other.

    Args:
        prepared: the attention.
        k: the number of keys.
    """

    def __init__(self, prepared: PreparedAttention, k: int) -> None:
        self.k = k
        self.scores = prepared.call.q.new_full((*prepared.call.q.shape[:-1], k), -torch.inf)
        self.keys = torch.full(self.scores.shape, -1, dtype=torch.int64, device=self.scores.device)

    def add(self, block: ScoreBlock, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Take a chunk of `score_chunks`; returns its largest scores, falling, and their places among its columns."""
        count = min(self.k, block.columns)
        values, places = _largest(scores, count)
        block.put_queries(self.scores[..., :count], values)
        keys = block.keys[places] if isinstance(block.keys, Tensor) else places + block.keys[0]
        block.put_queries(self.keys[..., :count], keys.masked_fill_(values == -torch.inf, -1))
        return values, places

    def weights(self, log_denominator: Tensor) -> TopWeights:
        """The weights of these keys; for `log_denominator` see `PreparedAttention.log_denominator`."""
        denominator = log_denominator.clamp(max=MAX_LOG)[..., None]
        return TopWeights(self.scores.sub_(denominator).exp_(), self.keys)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row, and their places."""
    columns = scores.shape[-1]
    height = isqrt(columns // k)
    groups = columns // height
    if height < 4:
        return scores.topk(k)
    runs = scores[..., : height * groups].view(*scores.shape[:-1], height, groups)
    best = runs.amax(-2).topk(k, sorted=False).indices
    places = (best[..., None] + groups * torch.arange(height, device=scores.device)).flatten(-2)
    if height * groups < columns:
        rest = torch.arange(height * groups, columns, device=scores.device)
        places = torch.cat([places, rest.expand(*places.shape[:-1], -1)], -1)
    values, order = scores.gather(-1, places).topk(k)
    return values, places.gather(-1, order)


def pooled(prepared: PreparedAttention, rows: int, columns: int, log_denominator: Tensor) -> Tensor:
    """The map as cells, (batch, heads, rows, columns): each the sum of its weights, by the number of its queries.

    Args:
        prepared: the attention.
        rows: cells from top to bottom, as even as possible.
        columns: cells from left to right, likewise.
        log_denominator: see `PreparedAttention.log_denominator`.
    """
    cells = PooledCells(prepared, rows, columns)
    # An empty row has the log denominator inf, of which a product makes NaN; a large number has the same effect.
    for block, scores in score_chunks(prepared, log_denominator.clamp(max=MAX_LOG)):
        cells.add(block, scores.exp_())
    return cells.picture()


class PooledCells:
    """The sums of the weights in cells, from one chunk of weights after the other.

    Args:
        prepared: the attention.
        rows: see `pooled`.
        columns: see `pooled`.
    """

    def __init__(self, prepared: PreparedAttention, rows: int, columns: int) -> None:
        call = prepared.call
        self.sums = torch.zeros(*call.q.shape[:2], rows, columns, dtype=torch.float64, device=call.q.device)
        self.row_edges, self.column_edges = (
            torch.tensor([n * size // cells for n in range(cells + 1)], device=call.q.device)
            for size, cells in ((call.queries, rows), (call.keys, columns))
        )

    def add(self, block: ScoreBlock, weights: Tensor) -> Tensor:
        """Take the weights of a chunk of `score_chunks`; returns their sums over the rows of each cell."""
        rows_before = _places_before(block.rows, self.row_edges)
        first, stop = int((rows_before == 0).sum()) - 1, int((rows_before < block.height).sum())
        spans = pairwise(rows_before[first : stop + 1].tolist())
        sums = torch.stack([weights[..., top:bottom, :].sum(-2) for top, bottom in spans], -2)
        # The sums before each edge; in float64, where a difference of two such sums is exact enough.
        before = sums.cumsum(-1, dtype=torch.float64)
        before = torch.cat([before.new_zeros(*before.shape[:-1], 1), before], -1)
        block.take_heads(self.sums)[:, :, first:stop] += before[
            ..., _places_before(block.keys, self.column_edges)
        ].diff(dim=-1)
        return sums

    def picture(self) -> Tensor:
        """Each cell's sum, divided by the number of its queries."""
        return self.sums.div_(self.row_edges.diff()[:, None])


def _places_before(places: Places, edges: Tensor) -> Tensor:
    """The number of a block's rows or keys before each edge."""
    if isinstance(places, Tensor):
        return torch.searchsorted(places, edges)
    return (edges - places[0]).clamp(0, num_places(places))
