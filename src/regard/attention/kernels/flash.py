"""A schedule on PyTorch's fused CPU kernel, with gradients and sinks.

The kernel returns, beside the output of a block, the logarithm of each row's sum of exponentials (lse). Its backward
pass takes both and computes weights = exp(scores - lse) anew, so that a block's gradient needs nothing but that
block (Dao 2023, "FlashAttention-2", algorithm 2). A sink is one more exponential in the sum: with it in the lse and
in the output, the same backward pass is right for sinks as well.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels.block import ScoreBlock
from regard.attention.kernels.call import AttentionCall, ensure_unchanged
from regard.attention.kernels.grad_accumulator import GradAccumulator, empty_like_layout
from regard.attention.kernels.schedule import Schedule

__all__ = ["additive", "backward", "first_derivative_only", "forward", "fused_kernel", "run", "widen"]

forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def run(call: AttentionCall, schedule: Schedule) -> tuple[Tensor, Tensor]:
    """The output and the lse of every row, (batch, heads, queries), without the sinks; the lse has no gradient."""
    output, lse = _Flash.apply(call.q, call.k, call.v, call.sinks, call, schedule)  # type: ignore[no-untyped-call]
    return output, lse


def fused_kernel(
    q: Tensor, k: Tensor, v: Tensor, *, added: Tensor | None = None, causal: bool = False, scale: float | int
) -> tuple[Tensor, Tensor]:
    """One call of the kernel, at any width: output and lse.

    It wants the numbers of a width side by side, and one width for q, k and v. Zeros appended to q and k leave every
    score as it is; zeros appended to v come out and are cut off. Key heads that serve several query heads stay as
    they are.
    """
    width = max(q.shape[-1], v.shape[-1])
    output, lse = forward(*(widen(t, width) for t in (q, k, v)), 0.0, causal, attn_mask=added, scale=scale)
    return output[..., : v.shape[-1]], lse


def widen(t: Tensor, width: int) -> Tensor:
    """Zeros up to a width; the numbers of a width side by side."""
    if t.shape[-1] < width:
        t = F.pad(t, (0, width - t.shape[-1]))  # in the order of memory that t had
    return t if t.stride(-1) == 1 else t.contiguous()


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall, schedule: Schedule
    ) -> tuple[Tensor, Tensor]:
        output = empty_like_layout(q, v.shape[-1], q.dtype)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        lse = torch.empty(len(q), call.queries, q.shape[1], dtype=wide, device=q.device).transpose(1, 2)
        computed: list[tuple[slice, slice]] = []
        added = _Added(call)
        for block in schedule(call):
            part, part_lse = fused_kernel(
                block.take_queries(q),
                block.take_keys(k),
                block.take_keys(v),
                added=added(block),
                causal=block.causal,
                scale=call.scale,
            )
            block.take_queries(output).copy_(part)
            block.take_queries(lse).copy_(part_lse)
            computed.append(block.query_slices)
        # Rows that no block is about attend to nothing: zeros.
        _zero_the_others(computed, output, lse)
        with_sink = lse
        if sinks is not None:
            with_sink = _sum_of_two(lse, sinks.to(wide)[:, None])
            output.mul_((lse - with_sink).exp()[..., None].to(output.dtype))
        ctx.save_for_backward(q, k, v, sinks, output, with_sink)
        ctx.call, ctx.schedule, ctx.held = call.without_tensors(), schedule, call.version_snapshot()
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        first_derivative_only(ctx.held)
        q, k, v, sinks, output, lse = ctx.saved_tensors
        call: AttentionCall = ctx.call
        dq = empty_like_layout(q, q.shape[-1], q.dtype)
        dk, dv = GradAccumulator(k, lse.dtype), GradAccumulator(v, lse.dtype)
        computed: list[tuple[slice, slice]] = []
        added = _Added(call)
        width = max(q.shape[-1], v.shape[-1])
        for block in ctx.schedule(call):
            inputs = [block.take_queries(gradient), block.take_queries(q), block.take_keys(k), block.take_keys(v)]
            dq_part, dk_part, dv_part = backward(
                *(widen(t, width) for t in (*inputs, block.take_queries(output))),
                block.take_queries(lse),
                0.0,
                block.causal,
                attn_mask=added(block),
                scale=call.scale,
            )
            block.take_queries(dq).copy_(dq_part[..., : q.shape[-1]])
            dk.add(block, dk_part[..., : k.shape[-1]])
            dv.add(block, dv_part[..., : v.shape[-1]])
            computed.append(block.query_slices)
        _zero_the_others(computed, dq)
        dsinks = None
        if sinks is not None:
            # d output / d sink = -(the sink's own weight) * output.
            weight = (sinks.to(lse.dtype)[:, None] - lse).exp()
            dsinks = -(weight * (gradient * output).sum(-1)).sum((0, 2)).to(sinks.dtype)
        return dq, dk.result(), dv.result(), dsinks, None, None


def _zero_the_others(computed: list[tuple[slice, slice]], *tensors: Tensor) -> None:
    """Zeros in the rows of each batch row that are not among these; tensors are (batch, heads, rows, ...)."""
    batch, _, queries = tensors[0].shape[:3]
    sizes = ((len(range(batch)[of_batch]), rows.stop - rows.start) for of_batch, rows in computed)
    if sum(some * rows for some, rows in sizes) < batch * queries:
        missing = torch.ones(batch, queries, dtype=torch.bool)
        for of_batch, rows in computed:
            missing[of_batch, rows] = False
        for t in tensors:
            t.masked_fill_(missing.view(batch, 1, queries, *[1] * (t.ndim - 3)), 0.0)


def first_derivative_only(held: list[tuple[Tensor, int]]) -> None:
    """What a backward pass must be sure of before it starts.

    Raises:
        NotImplementedError: the gradient is to be differentiated again (create_graph=True).
        RuntimeError: the mask or the bias was changed meanwhile.
    """
    # Gradients are on inside a backward pass only if its own are asked for.
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "create_graph=True: this kernel of attend has no second derivative. regard.steps(...).output has every one"
        )
    ensure_unchanged(held)


def _sum_of_two(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), whatever stands beside a number.

    `torch.logaddexp` rounds the last numbers of a tensor differently, so that a batch row would depend on the others.
    """
    return torch.maximum(a, b) + (a - b).abs().neg().exp().log1p()


class _Added:
    """`additive` for one block after another: blocks inside a band share one mask."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call
        self.last: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, block: ScoreBlock) -> Tensor | None:
        if block.allowed is None or self.call.bias is not None:
            return additive(self.call, block)
        if self.last is None or self.last[0] is not block.allowed:
            self.last = None  # before the next one is made: they are what takes most memory here
            self.last = block.allowed, additive(self.call, block)
        return self.last[1]


def additive(call: AttentionCall, block: ScoreBlock) -> Tensor | None:
    """What is added to a block's scores: its bias, and -inf where the mask says no."""
    bias = call.bias_for(block)
    if block.allowed is None:
        return bias
    if bias is None:
        bias = torch.zeros((), dtype=call.q.dtype, device=call.q.device)
    return torch.where(block.allowed, bias, -torch.inf)
