"""Everything at once on PyTorch's fused kernel: by its flags, or with a mask or bias as a tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels.block import ScoreBlock
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.flash import additive, fused_kernel, widen

__all__ = ["run", "run_anywhere"]


def run(call: AttentionCall, block: ScoreBlock) -> tuple[Tensor, Tensor]:
    """The output and the lse of one block that is the whole square, on the CPU."""
    return fused_kernel(call.q, call.k, call.v, added=additive(call, block), causal=block.causal, scale=call.scale)


def run_anywhere(call: AttentionCall, block: ScoreBlock) -> Tensor:
    """The same through PyTorch's own door, which finds the device's kernel; what a graph can hold."""
    added = additive(call, block) if call.bias is not None else block.allowed
    causal = block.causal
    if causal and added is not None:
        # The public function takes the flag or a tensor, not both.
        below = torch.ones(call.queries, call.keys, dtype=torch.bool, device=call.q.device).tril()
        added = added & below if added.dtype == torch.bool else torch.where(below, added, -torch.inf)
        causal = False
    d_value = call.v.shape[-1]
    width = max(call.q.shape[-1], d_value)
    output = F.scaled_dot_product_attention(
        widen(call.q, width),
        widen(call.k, width),
        widen(call.v, width),
        attn_mask=added,
        dropout_p=call.dropout,
        is_causal=causal,
        scale=call.scale,
        enable_gqa=call.grouped,
    )
    return output[..., :d_value]
