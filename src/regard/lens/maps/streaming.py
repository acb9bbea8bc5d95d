"""Questions that look at every weight: some rows at a time, in memory that is used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.attention.kernels.block import ScoreBlock
from regard.lens.maps.prepared import PreparedAttention

__all__ = ["TopWeights", "pooled", "score_chunks", "top"]

CHUNK_SCORES = 3 * 2**21
"""About how many scores stand in memory at once."""


class TopWeights(NamedTuple):
    """The keys that each query attends to most."""

    weights: Float[Tensor, "batch heads queries k"]
    """Falling; 0 where there is nothing more to attend to."""
    keys: Int[Tensor, "batch heads queries k"]
    """The key of each weight; -1 where there is nothing more to attend to."""


def score_chunks(prepared: PreparedAttention, less: Tensor | None = None) -> Iterator[tuple[ScoreBlock, Tensor]]:
    """Some rows at a time: which, and their scores (batch, heads, rows, columns), -inf where blocked.

    Every row that is not empty comes once, with every key that it may attend to. The scores are the caller's until it
    asks for the next ones, which are written over them.

    Args:
        prepared: the map.
        less: (batch, heads, queries), finite: a number to take off all scores of a row.
    """
    call = prepared.call
    heads, width = call.q.shape[1], call.q.shape[3]
    q, k = call.q * call.scale, call.k
    if less is not None and call.softcap is None:
        # One more feature takes it off in the product itself.
        q, k = torch.cat([q, -less[..., None]], -1), torch.cat([k, k.new_ones(1).expand(*k.shape[:-1], 1)], -1)
        width += 1
    kv_heads, group = k.shape[1], heads // k.shape[1]
    buffer = call.q.new_empty(0)
    for block, edge in _low(prepared):
        rows, columns = block.rows[1] - block.rows[0], block.columns
        left = block.take_queries(q)
        count = len(left) * heads * rows * columns
        if buffer.numel() < count:
            buffer = call.q.new_empty(count)
        together = (len(left), kv_heads, group * rows, columns)
        scores = buffer[:count].view(together)
        left = left.reshape(len(left), kv_heads, group * rows, width)
        torch.matmul(left, block.take_keys(k).transpose(-1, -2), out=scores)
        scores = scores.view(len(left), heads, rows, columns)
        if call.softcap is not None:
            scores.div_(call.softcap).tanh_().mul_(call.softcap)
            if less is not None:
                scores.sub_(block.take_queries(less)[..., None])
        added = call.bias_for(block)
        if added is not None:
            scores.add_(added)
        if block.allowed is not None:
            scores.masked_fill_(~block.allowed, -torch.inf)
        if edge is not None:
            corner = scores[..., edge:]
            later = torch.ones(corner.shape[-2:], dtype=torch.bool, device=corner.device).triu(1)
            corner.masked_fill_(later, -torch.inf)
        yield block, scores


def _low(prepared: PreparedAttention) -> Iterator[tuple[ScoreBlock, int | None]]:
    """The schedule's blocks in score_chunks of few rows, the kernel's flag for causal taken apart.

    A strip of such a block ends at the last key that its last row sees. The number beside it is the key that its first
    row sees last: from there on every row sees one key more than the row before.
    """
    call = prepared.call
    for block in (one for stack in prepared.schedule(call) for one in stack.unstack()):
        height = max(16, CHUNK_SCORES // (call.q.shape[1] * max(1, block.columns)))
        for top in range(*block.rows, height):
            rows = (top, min(top + height, block.rows[1]))
            may, keys, edge = block.allowed, block.keys, None
            if may is not None and may.shape[-2] != 1:
                may = may[..., top - block.rows[0] : rows[1] - block.rows[0], :]
            if block.causal and not isinstance(keys, Tensor):
                first, last = top - block.rows[0], rows[1] - block.rows[0]
                if first + 1 < block.columns:
                    edge = first
                keys = (keys[0], min(keys[1], keys[0] + last))
                may = may if may is None else may[..., : keys[1] - keys[0]]
            for batch in range(len(call.q)) if block.batch is None else [block.batch]:
                mine = may if may is None or len(may) == 1 or block.batch is not None else may[batch : batch + 1]
                yield replace(block, rows=rows, keys=keys, allowed=mine, causal=False, batch=batch), edge


def top(prepared: PreparedAttention, k: int, norm: Tensor) -> TopWeights:
    """The k keys of each row with the largest weights.

    Only scores are compared, which stand in the order of the weights. What is among the k largest scores of a row lies
    in one of the k groups of keys whose own largest are the largest; a group is every n-th key, so that the largest of
    all groups are found by comparing runs of keys.

    Args:
        prepared: the map.
        k: how many.
        norm: see `PreparedAttention.norm`.
    """
    call = prepared.call
    weights = call.q.new_zeros(*call.q.shape[:-1], k)
    keys = torch.full(weights.shape, -1, dtype=torch.int64, device=weights.device)
    for block, scores in score_chunks(prepared):
        some = min(k, block.columns)
        values, places = _largest(scores, some)
        own = (values - block.take_queries(norm)[..., None]).exp()
        block.take_queries(weights)[..., :some] = own
        places = block.keys[places] if isinstance(block.keys, Tensor) else places + block.keys[0]
        block.take_queries(keys)[..., :some] = places.masked_fill_(values == -torch.inf, -1)
    return TopWeights(weights, keys)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, and where they are."""
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
    values, chosen = scores.gather(-1, places).topk(k)
    return values, places.gather(-1, chosen)


def pooled(prepared: PreparedAttention, rows: int, columns: int, norm: Tensor) -> Tensor:
    """The map as cells, (batch, heads, rows, columns): the sum of the weights in each, by the number of its queries.

    Args:
        prepared: the map.
        rows: cells from top to bottom, as even as they can be.
        columns: cells from left to right, likewise.
        norm: see `PreparedAttention.norm`.
    """
    call = prepared.call
    picture = torch.zeros(*call.q.shape[:2], rows, columns, dtype=torch.float64, device=call.q.device)
    top_of = [n * call.queries // rows for n in range(rows + 1)]
    left_of = torch.tensor([n * call.keys // columns for n in range(columns + 1)], device=call.q.device)
    cell = 0
    # A row without weights has the norm inf, which no product survives; a large number does as well.
    for block, scores in score_chunks(prepared, norm.clamp(max=1e30)):
        weights = scores.exp_()
        start, stop = block.rows
        while top_of[cell] > start:
            cell = 0  # the next batch row
        edges = _edges(block, left_of)
        while top_of[cell + 1] <= start:
            cell += 1
        lines, at = [], cell
        while start < stop:
            end = min(stop, top_of[at + 1])
            lines.append(weights[..., start - block.rows[0] : end - block.rows[0], :].sum(-2))
            start, at = end, at + 1
        # What lies left of each edge; in float64, where a difference of two such sums is exact enough.
        left = torch.stack(lines, -2).cumsum(-1, dtype=torch.float64)
        left = torch.cat([left.new_zeros(*left.shape[:-1], 1), left], -1)
        own = picture if block.batch is None else picture[block.batch : block.batch + 1]
        own[:, :, cell:at] += left[..., edges].diff(dim=-1)
    counts = torch.tensor(top_of, device=call.q.device).diff()
    return picture.div_(counts[:, None])


def _edges(block: ScoreBlock, left_of: Tensor) -> Tensor:
    """How many of a block's keys lie before each cell of columns."""
    if isinstance(block.keys, Tensor):
        return torch.searchsorted(block.keys, left_of)
    return (left_of - block.keys[0]).clamp(0, block.columns)


def received(prepared: PreparedAttention, norm: Tensor, logs: Tensor | None) -> Tensor:
    """The sum over the queries of the weights on each key, (batch, heads, keys).

    Args:
        prepared: the map.
        norm: see `PreparedAttention.norm`.
        logs: (batch, 1, queries), the logarithm of what each query counts; None: 1 each.
    """
    call = prepared.call
    total = torch.zeros(*call.q.shape[:2], call.keys, 1, dtype=torch.float64, device=call.q.device)
    less = (norm if logs is None else norm - logs).clamp(max=1e30)
    for block, scores in score_chunks(prepared, less):
        block.add_to_keys(total, scores.exp_().sum(-2)[..., None].to(total.dtype))
    return total[..., 0]
