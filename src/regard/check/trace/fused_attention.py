"""PyTorch's fused attention on the CPU, step by step: what a trace keeps of code that chose the kernel itself."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FUSED", "attention_by_steps"]

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def attention_by_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel's two results, the output and the logarithms of the sums of exponentials (lse), by single operations.

    It is called inside of a mode, where composite operations such as `flatten` are not taken apart into those that
    modes know. Hence single operations alone.

    Args:
        q: (batch, num_heads, queries, width).
        k: (batch, num_kv_heads, keys, width).
        v: (batch, num_kv_heads, keys, width of a value).
        dropout_p: not used; modules are judged in evaluation mode.
        is_causal: whether a query sees no later key.
        attn_mask: is added to the scores.
        scale: of q . k; None for 1/sqrt(width).
    """
    queries, keys, values = _joined(q, 1), _joined(k, q.shape[1] // k.shape[1]), _joined(v, q.shape[1] // v.shape[1])
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*q.shape[:3], k.shape[2])
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.ops.aten._softmax(scores, -1, False)
    output = torch.bmm(weights.view(-1, *scores.shape[2:]), values).view(*q.shape[:3], v.shape[3])
    return output, scores.logsumexp(-1)


def _joined(heads: Tensor, repeats: int) -> Tensor:
    """(batch, heads, tokens, width) as (batch * heads * repeats, tokens, width), in memory of its own."""
    batch, num_heads, *sizes = heads.shape
    repeated = heads.unsqueeze(2).expand(batch, num_heads, repeats, *sizes)
    return repeated.clone(memory_format=torch.contiguous_format).view(-1, *sizes)
