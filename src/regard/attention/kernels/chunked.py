"""A schedule by the definition itself, a few rows at a time: slower than the fused kernel, and honours everything.

Memory grows with the number of keys, not with its square: the weights of some rows are formed, used and forgotten,
and formed again in the backward pass (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.bias import PositionBias
from regard.attention.kernels.block import ScoreBlock
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.flash import first_derivative_only
from regard.attention.kernels.schedule import Schedule
from regard.attention.steps import define

__all__ = ["height_of", "parts", "run"]

CHUNK_SCORES = 2**20
"""About how many scores of one batch row stand in memory at once; tiles that fit the caches are the fastest."""


def run(call: AttentionCall, schedule: Schedule) -> Tensor:
    """The output of every row."""
    seed = int(torch.randint(2**62, (), device="cpu")) if call.dropout else 0
    table, learned = None, []
    if isinstance(call.bias, PositionBias):
        learned = list(call.bias.parameters())
    elif call.bias is not None:
        table = call.bias
    inputs = (call.q, call.k, call.v, call.sinks, table, call, schedule, seed, *learned)
    return _Chunked.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        table: Tensor | None,
        call: AttentionCall,
        schedule: Schedule,
        seed: int,
        *learned: Tensor,
    ) -> Tensor:
        output = v.new_zeros(*q.shape[:-1], v.shape[-1])
        for n, block in enumerate(_low(call, schedule)):
            added = call.bias_for(block)
            part = _define(
                call, block, block.take_queries(q), block.take_keys(k), block.take_keys(v), added, sinks, seed + n
            )
            block.take_queries(output).copy_(part)
        ctx.save_for_backward(q, k, v, sinks, table, *learned)
        ctx.call, ctx.schedule, ctx.seed, ctx.held = call.without_tensors(), schedule, seed, call.version_snapshot()
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        first_derivative_only(ctx.held)
        saved = ctx.saved_tensors
        needed = [*ctx.needs_input_grad[:5], *ctx.needs_input_grad[8:]]
        # In half precision, each block would round what it adds to.
        sums = [
            torch.zeros(t.shape, dtype=_wide(t.dtype), device=t.device) if t is not None and needs else None
            for t, needs in zip(saved, needed, strict=True)
        ]
        q, k, v, sinks, table, *learned = saved
        for n, block in enumerate(_low(ctx.call, ctx.schedule)):
            with torch.enable_grad():
                leaves = [_leaf(block.take_queries(q)), _leaf(block.take_keys(k)), _leaf(block.take_keys(v))]
                sink = None if sinks is None else _leaf(sinks)
                added = ctx.call.bias_for(block)
                if table is not None:
                    added = _leaf(added)
                output = _define(ctx.call, block, leaves[0], leaves[1], leaves[2], added, sink, ctx.seed + n)
            # What takes part in the block, its sum over the blocks, and how the sum grows.
            asked: list[tuple[Any, Any, Callable[[Tensor, Tensor], object]]] = [
                (leaves[0], sums[0], block.add_to_queries),
                (leaves[1], sums[1], block.add_to_keys),
                (leaves[2], sums[2], block.add_to_keys),
                (sink, sums[3], Tensor.add_),
                (added, sums[4], block.add_to_pairs),
                *((t, total, Tensor.add_) for t, total in zip(learned, sums[5:], strict=True)),
            ]
            asked = [(t, total, add) for t, total, add in asked if total is not None]
            parts = torch.autograd.grad(
                output, [t for t, _, _ in asked], block.take_queries(gradient), allow_unused=True
            )
            for part, (_, total, add) in zip(parts, asked, strict=True):
                if part is not None:
                    add(total, part)
        sums = [None if t is None else t.to(like.dtype) for t, like in zip(sums, saved, strict=True)]
        return (*sums[:5], None, None, None, *sums[5:])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Half precision is for what is kept, not for what is computed on the way."""
    return torch.promote_types(dtype, torch.float32)


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()


def _define(
    call: AttentionCall,
    block: ScoreBlock,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    sinks: Tensor | None,
    seed: int,
) -> Tensor:
    wide = _wide(q.dtype)
    return define(
        q.to(wide),
        k.to(wide),
        v.to(wide),
        block.allowed,
        scale=call.scale,
        bias=None if added is None else added.to(wide),
        softcap=call.softcap,
        sinks=None if sinks is None else sinks.to(wide),
        dropped=_dropped(call.dropout, seed, q.device) if call.dropout else None,
    ).output.to(q.dtype)


def _dropped(share: float | int, seed: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Dropout that falls on the same weights when the backward pass asks again."""

    def drop(weights: Tensor) -> Tensor:
        if share == 1:
            return weights * 0
        coins = torch.Generator(device).manual_seed(seed)
        kept = torch.empty_like(weights).bernoulli_(1 - share, generator=coins)
        return weights * kept / (1 - share)

    return drop


def _low(call: AttentionCall, schedule: Schedule) -> Iterator[ScoreBlock]:
    """The schedule's blocks in strips of few rows, each about one batch row where the square is large."""
    # By sizes that do not hang on the batch, so that a row of it has the same bits alone.
    large = call.q.shape[1] * call.queries * call.keys > CHUNK_SCORES // 16
    for block in (part for stack in schedule(call) for part in parts(call, stack)):
        height = height_of(call, block)
        batches = range(len(call.q)) if block.batch is None and large else [block.batch]
        for top in range(*block.rows, height):
            rows = (top, min(top + height, block.rows[1]))
            may = _strip(block, rows, call.q.device)
            for batch in batches:
                mine = may
                if may is not None and len(may) > 1 and batch is not None:
                    mine = may[batch : batch + 1]
                yield replace(block, rows=rows, allowed=mine, causal=False, batch=batch)


def parts(call: AttentionCall, block: ScoreBlock) -> Iterator[ScoreBlock]:
    """A stack's blocks one by one; those that share no keys, as many at a time as scores may stand in memory."""
    if block.key_stride < block.columns or block.height > height_of(call, block):
        yield from block.unstack()
    else:
        yield from block.split(max(1, CHUNK_SCORES // max(1, call.q.shape[1] * block.height * block.columns)))


def height_of(call: AttentionCall, block: ScoreBlock) -> int:
    """How many rows of a block are computed at a time."""
    return max(16, CHUNK_SCORES // (call.q.shape[1] * max(1, block.columns)))


def _strip(block: ScoreBlock, rows: tuple[int, int], device: torch.device) -> Tensor | None:
    """The mask of some rows of a block, its flag for causal written out."""
    top, bottom = (row - block.rows[0] for row in rows)
    may = block.allowed
    if may is not None and may.shape[-2] != 1:
        may = may[..., top:bottom, :]
    if block.causal:
        seen = torch.arange(block.columns, device=device) <= torch.arange(top, bottom, device=device)[:, None]
        may = seen[None, None] if may is None else may & seen
    return may
