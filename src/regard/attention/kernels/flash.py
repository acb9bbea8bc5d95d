"""A schedule on PyTorch's fused CPU kernel, with gradients and sinks.

The kernel returns the output of a block and the logarithm of each row's sum of exponentials (lse). Its backward pass
takes both and computes weights = exp(scores - lse) again, so that the gradient of a block needs that block only (Dao
2023, "FlashAttention-2", algorithm 2). A sink is one more exponential in the sum: once it is in the lse and in the
output, the same backward pass is right for sinks as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels.call import AttentionCall, ensure_unchanged
from regard.attention.kernels.grad_accumulator import GradAccumulator, empty_like_layout
from regard.attention.kernels.schedule import Schedule
from regard.attention.kernels.score_block import Places, ScoreBlock, num_places

# The same operator as torch.ops.aten..., by PyTorch's own binding, which takes four fifths of the time to call.
forward: Callable[..., tuple[Tensor, Tensor]] = torch._scaled_dot_product_flash_attention_for_cpu
backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def run(call: AttentionCall, schedule: Schedule) -> tuple[Tensor, Tensor]:
    """The output, and the lse (batch, heads, queries) without the sinks; the lse has no gradient."""
    output, lse = _Flash.apply(call.q, call.k, call.v, call.sinks, call, schedule)  # type: ignore[no-untyped-call]
    return output, lse


def fused_kernel(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, causal: bool = False, scale: float | int
) -> tuple[Tensor, Tensor]:
    """One call of the kernel, at any width: output and lse.

    The kernel needs q, k and v of one width, contiguous along it. Zeros appended to q and k do not change the scores;
    zeros appended to v become zeros of the output, which are cut off. Key heads may serve several query heads.
    """
    width = max(q.shape[-1], v.shape[-1])
    output, lse = forward(*(widen(t, width) for t in (q, k, v)), 0.0, causal, attn_mask=bias, scale=scale)
    return output[..., : v.shape[-1]], lse


def widen(t: Tensor, width: int) -> Tensor:
    """A tensor padded with zeros to a width, and contiguous along it."""
    if t.shape[-1] < width:
        t = F.pad(t, (0, width - t.shape[-1]))  # keeps the memory layout of t
    return t if t.stride(-1) == 1 else t.contiguous()


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall, schedule: Schedule
    ) -> tuple[Tensor, Tensor]:
        output = empty_like_layout(q, v.shape[-1], q.dtype)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        lse = torch.empty(len(q), call.queries, q.shape[1], dtype=wide, device=q.device).transpose(1, 2)
        computed: list[tuple[int | None, Places]] = []
        masks = _AdditiveMasks(call)
        for block in schedule(call):
            part, part_lse = fused_kernel(
                block.take_queries(q),
                block.take_keys(k),
                block.take_keys(v),
                bias=masks(block),
                causal=block.causal,
                scale=call.scale,
            )
            block.put_queries(output, part)
            block.put_queries(lse, part_lse)
            computed.append((block.batch, block.row_places))
        # Rows that are in no block attend to nothing: zeros.
        _zero_uncomputed(computed, output, lse)
        with_sink = lse
        if sinks is not None:
            with_sink = _log_add_exp(lse, sinks.to(wide)[:, None])
            output.mul_((lse - with_sink).exp()[..., None].to(output.dtype))
        ctx.save_for_backward(q, k, v, sinks, output, with_sink)
        ctx.call, ctx.schedule, ctx.snapshot = call.without_tensors(), schedule, call.version_snapshot()
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        validate_backward(ctx.snapshot)
        q, k, v, sinks, output, lse = ctx.saved_tensors
        call: AttentionCall = ctx.call
        dq = empty_like_layout(q, q.shape[-1], q.dtype)
        dk, dv = GradAccumulator(k, lse.dtype), GradAccumulator(v, lse.dtype)
        computed: list[tuple[int | None, Places]] = []
        masks = _AdditiveMasks(call)
        width = max(q.shape[-1], v.shape[-1])
        for block in ctx.schedule(call):
            inputs = [block.take_queries(gradient), block.take_queries(q), block.take_keys(k), block.take_keys(v)]
            dq_part, dk_part, dv_part = backward(
                *(widen(t, width) for t in (*inputs, block.take_queries(output))),
                block.take_queries(lse),
                0.0,
                block.causal,
                attn_mask=masks(block),
                scale=call.scale,
            )
            block.put_queries(dq, dq_part[..., : q.shape[-1]])
            dk.add(block, dk_part[..., : k.shape[-1]])
            dv.add(block, dv_part[..., : v.shape[-1]])
            computed.append((block.batch, block.row_places))
        _zero_uncomputed(computed, dq)
        dsinks = None
        if sinks is not None:
            # d output / d sink = -(weight of the sink) * output.
            weight = (sinks.to(lse.dtype)[:, None] - lse).exp()
            dsinks = -(weight * (gradient * output).sum(-1)).sum((0, 2)).to(sinks.dtype)
        return dq, dk.result(), dv.result(), dsinks, None, None


def _zero_uncomputed(computed: list[tuple[int | None, Places]], *tensors: Tensor) -> None:
    """Zeros in every row that is not among the computed ones (of a batch row, or of all); (batch, heads, rows, ...)."""
    batch, _, queries = tensors[0].shape[:3]
    if sum(num_places(rows) * (batch if row is None else 1) for row, rows in computed) < batch * queries:
        missing = torch.ones(batch, queries, dtype=torch.bool)
        for row, rows in computed:
            own = missing if row is None else missing[row : row + 1]
            own[:, rows if isinstance(rows, Tensor) else slice(*rows)] = False
        for t in tensors:
            t.masked_fill_(missing.view(batch, 1, queries, *[1] * (t.ndim - 3)), 0.0)


def validate_backward(snapshot: list[tuple[Tensor, int]]) -> None:
    """Refuse a backward pass that could not give the right gradient.

    Raises:
        NotImplementedError: the gradient is to be differentiated again (create_graph=True).
        RuntimeError: the mask or the bias was changed after the forward pass.
    """
    # Inside a backward pass, gradients are recorded only with create_graph=True.
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "create_graph=True: this kernel of attend has no second derivative. regard.steps(...).output has every one"
        )
    ensure_unchanged(snapshot)


def _log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), where each result depends on its own two numbers only.

    `torch.logaddexp` rounds the last numbers of a tensor differently: the bits of a batch row would depend on the
    others.
    """
    return torch.maximum(a, b) + (a - b).abs().neg().exp().log1p()


class _AdditiveMasks:
    """`additive` for one block after another; neighbouring blocks of a band share one mask."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call
        self.last: tuple[Tensor, Tensor | None] | None = None

    def __call__(self, block: ScoreBlock) -> Tensor | None:
        if block.allowed is None or self.call.bias is not None:
            return additive(self.call, block)
        if self.last is None or self.last[0] is not block.allowed:
            self.last = None  # frees it before the next one is made: these masks need the most memory here
            self.last = block.allowed, additive(self.call, block)
        return self.last[1]


def additive(call: AttentionCall, block: ScoreBlock) -> Tensor | None:
    """The tensor that is added to the scores of a block: its bias, and -inf where blocked."""
    bias = call.bias_for(block)
    if block.allowed is None:
        return bias
    if bias is None:
        bias = torch.zeros((), dtype=call.q.dtype, device=call.q.device)
    return torch.where(block.allowed, bias, -torch.inf)
