"""A schedule computed by the definition, a chunk of rows at a time: slower than the fused kernel, with every option.

Memory grows with the number of keys, not with its square: the weights of a chunk are computed, used and freed, and
computed again in the backward pass (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.bias import PositionBias
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.flash import validate_backward
from regard.attention.kernels.schedule import Schedule
from regard.attention.kernels.score_block import ScoreBlock
from regard.attention.steps import compute_steps, grouped_matmul

CHUNK_SCORES = 2**20
"""About how many scores of one batch row are in memory at once; chunks that fit the CPU caches are the fastest."""
GPU_CHUNK_FACTOR = 16
"""How many times as many on a GPU, where starting a kernel takes longer than computing so few."""


def run(call: AttentionCall, schedule: Schedule) -> Tensor:
    """The output of every row."""
    seed = int(torch.randint(2**62, (), device="cpu")) if call.dropout else 0
    bias_tensor, learned = None, []
    if isinstance(call.bias, PositionBias):
        learned = list(call.bias.parameters())
    elif call.bias is not None:
        bias_tensor = call.bias
    inputs = (call.q, call.k, call.v, call.sinks, bias_tensor, call, schedule, seed, *learned)
    return _Chunked.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]


def run_whole(call: AttentionCall, schedule: Schedule) -> Tensor:
    """The output of the only block of a schedule, in plain tensor code: for graphs and transforms of `torch.func`."""
    (block,) = schedule(call)
    return compute_steps(
        call.q,
        call.k,
        call.v,
        block.allowed,
        scale=call.scale,
        bias=call.bias_for(block),
        softcap=call.softcap,
        sinks=call.sinks,
        dropout=partial(F.dropout, p=call.dropout) if call.dropout else None,
    ).output


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        bias_tensor: Tensor | None,
        call: AttentionCall,
        schedule: Schedule,
        seed: int,
        *learned: Tensor,
    ) -> Tensor:
        output = v.new_zeros(*q.shape[:-1], v.shape[-1])
        for n, block in enumerate(_chunks(call, schedule)):
            bias = call.bias_for(block)
            inputs = block.take_queries(q), block.take_keys(k), block.take_keys(v)
            part = _compute_in_place(call, block, *inputs, bias, sinks)
            if part is None:
                part = _compute(call, block, *inputs, bias, sinks, seed + n)
            block.put_queries(output, part)
        ctx.save_for_backward(q, k, v, sinks, bias_tensor, *learned)
        ctx.call, ctx.schedule, ctx.seed = call.without_tensors(), schedule, seed
        ctx.snapshot = call.version_snapshot()
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        validate_backward(ctx.snapshot)
        saved = ctx.saved_tensors
        needed = [*ctx.needs_input_grad[:5], *ctx.needs_input_grad[8:]]
        # Half precision would round after each block.
        sums = [
            torch.zeros(t.shape, dtype=_compute_dtype(t.dtype), device=t.device) if t is not None and needs else None
            for t, needs in zip(saved, needed, strict=True)
        ]
        q, k, v, sinks, bias_tensor, *learned = saved
        for n, block in enumerate(_chunks(ctx.call, ctx.schedule)):
            with torch.enable_grad():
                leaves = [_leaf(block.take_queries(q)), _leaf(block.take_keys(k)), _leaf(block.take_keys(v))]
                sink = None if sinks is None else _leaf(sinks)
                bias = ctx.call.bias_for(block)
                if bias_tensor is not None:
                    bias = _leaf(bias)
                output = _compute(ctx.call, block, leaves[0], leaves[1], leaves[2], bias, sink, ctx.seed + n)
            # Each input of the block, the sum of its gradients over the blocks, and the function that adds to the sum.
            inputs: list[tuple[Any, Any, Callable[[Tensor, Tensor], object]]] = [
                (leaves[0], sums[0], block.add_to_queries),
                (leaves[1], sums[1], block.add_to_keys),
                (leaves[2], sums[2], block.add_to_keys),
                (sink, sums[3], Tensor.add_),
                (bias, sums[4], block.add_to_pairs),
                *((t, total, Tensor.add_) for t, total in zip(learned, sums[5:], strict=True)),
            ]
            inputs = [(t, total, add) for t, total, add in inputs if total is not None]
            parts = torch.autograd.grad(
                output, [t for t, _, _ in inputs], block.take_queries(gradient), allow_unused=True
            )
            for part, (_, total, add) in zip(parts, inputs, strict=True):
                if part is not None:
                    add(total, part)
        sums = [None if t is None else t.to(like.dtype) for t, like in zip(sums, saved, strict=True)]
        return (*sums[:5], None, None, None, *sums[5:])


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of intermediate results: half precision is for inputs and outputs only."""
    return torch.promote_types(dtype, torch.float32)


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()


def _compute(
    call: AttentionCall,
    block: ScoreBlock,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: int,
) -> Tensor:
    wide = _compute_dtype(q.dtype)
    return compute_steps(
        q.to(wide),
        k.to(wide),
        v.to(wide),
        block.allowed,
        scale=call.scale,
        bias=None if bias is None else bias.to(wide),
        softcap=call.softcap,
        sinks=None if sinks is None else sinks.to(wide),
        dropout=_dropout(call.dropout, seed, q.device) if call.dropout else None,
    ).output.to(q.dtype)


def _compute_in_place(
    call: AttentionCall, block: ScoreBlock, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> Tensor | None:
    """What `_compute` returns, in the memory of the scores and a second one; None where only `_compute` can tell.

    That is with dropout, and where NaN comes out: of numbers that are not finite, or of a row with nothing to attend
    to. The backward pass needs every intermediate result, so it takes `_compute`. So does a GPU, which would have to be
    waited for to look for NaN.
    """
    if call.dropout or not q.is_cpu:
        return None
    wide = _compute_dtype(q.dtype)
    scores = grouped_matmul(q.to(wide), k.to(wide).transpose(-2, -1)).mul_(call.scale)
    if call.softcap is not None:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    if block.allowed is not None:
        if torch.broadcast_shapes(scores.shape, block.allowed.shape) != scores.shape:  # type: ignore[no-untyped-call]
            return None
        scores.masked_fill_(~block.allowed, -torch.inf)
    if sinks is None:
        output = grouped_matmul(scores.softmax(dim=-1), v.to(wide))
    else:
        sink = sinks.to(wide)[:, None, None]
        largest = torch.maximum(scores.amax(dim=-1, keepdim=True), sink)
        weights = scores.sub_(largest).exp_()
        total = weights.sum(dim=-1, keepdim=True).add_((sink - largest).exp_())
        output = grouped_matmul(weights, v.to(wide)).div_(total)
    return None if bool(output.isnan().any()) else output.to(q.dtype)


def _dropout(p: float | int, seed: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Dropout that drops the same weights again in the backward pass."""

    def drop(weights: Tensor) -> Tensor:
        if p == 1:
            return weights * 0
        generator = torch.Generator(device).manual_seed(seed)
        keep = torch.empty_like(weights).bernoulli_(1 - p, generator=generator)
        return weights * keep / (1 - p)

    return drop


def _chunks(call: AttentionCall, schedule: Schedule) -> Iterator[ScoreBlock]:
    """The schedule's blocks cut into chunks of rows, each for one batch row where there are many scores."""
    # The sizes do not depend on the batch, so that other batch rows do not change how one is rounded here.
    large = call.q.shape[1] * call.queries * call.keys > CHUNK_SCORES // 16
    for block in (part for stack in schedule(call) for part in split_stack(call, stack)):
        height = chunk_height(call, block)
        batches = range(len(call.q)) if block.batch is None and large else [block.batch]
        for top, rows in block.chunks_of_rows(height):
            part = _without_later_keys(rows, top)
            allowed = _chunk_mask(part, top, call.q.device)
            for batch in batches:
                own = allowed
                if allowed is not None and len(allowed) > 1 and batch is not None:
                    own = allowed[batch : batch + 1]
                yield replace(part, allowed=own, causal=False, batch=batch)


def _without_later_keys(block: ScoreBlock, top: int) -> ScoreBlock:
    """Some rows of a block, from `top` on, without the keys behind the last that they may attend to by its flag."""
    last = top + block.height
    if not block.causal or block.num_stacked > 1 or isinstance(block.keys, Tensor) or last >= block.columns:
        return block
    allowed = block.allowed
    if allowed is not None and allowed.shape[-1] != 1:
        allowed = allowed[..., :last]
    return replace(block, keys=(block.keys[0], block.keys[0] + last), allowed=allowed)


def split_stack(call: AttentionCall, block: ScoreBlock) -> Iterator[ScoreBlock]:
    """The blocks of a stack: one by one if they share keys, otherwise as many at a time as `CHUNK_SCORES` allows."""
    if block.key_stride < block.columns or block.height > chunk_height(call, block):
        yield from block.unstack()
    else:
        yield from block.split(max(1, CHUNK_SCORES // max(1, call.q.shape[1] * block.height * block.columns)))


def chunk_height(call: AttentionCall, block: ScoreBlock) -> int:
    """How many rows of a block are computed at a time."""
    scores = CHUNK_SCORES if call.q.device.type == "cpu" else GPU_CHUNK_FACTOR * CHUNK_SCORES
    return max(16, scores // (call.q.shape[1] * max(1, block.columns)))


def _chunk_mask(block: ScoreBlock, top: int, device: torch.device) -> Tensor | None:
    """The mask of some rows of a block, from `top` on, with its causal flag as a tensor."""
    if not block.causal:
        return block.allowed
    row = torch.arange(top, top + block.height, device=device)[:, None]
    causal = torch.arange(block.columns, device=device) <= row
    return causal[None, None] if block.allowed is None else block.allowed & causal
