"""One call of PyTorch's fused kernel for all pairs: with its flags, or with a mask or bias as a tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.flash import additive, fused_kernel, widen
from regard.attention.kernels.score_block import ScoreBlock


def run_on_cpu(call: AttentionCall, block: ScoreBlock) -> tuple[Tensor, Tensor]:
    """The output and the lse of one block that holds every pair, on the CPU."""
    return fused_kernel(call.q, call.k, call.v, bias=additive(call, block), causal=block.causal, scale=call.scale)


def run(call: AttentionCall, block: ScoreBlock) -> Tensor:
    """The output by PyTorch's public function, which finds the kernel of the device and may be part of a graph."""
    attn_mask = additive(call, block) if call.bias is not None else block.allowed
    causal = block.causal
    if causal and attn_mask is not None:
        # The public function takes the causal flag or a tensor, not both.
        causal_mask = torch.ones(call.queries, call.keys, dtype=torch.bool, device=call.q.device).tril()
        if attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & causal_mask
        else:
            attn_mask = torch.where(causal_mask, attn_mask, -torch.inf)
        causal = False
    # Of a row with nothing to attend to, some GPU kernels (cuDNN's, in half precision) give whatever was in memory.
    has_keys = None
    if attn_mask is not None and call.q.device.type != "cpu":
        allowed = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -torch.inf
        has_keys = allowed.any(-1, keepdim=True)
        attn_mask = attn_mask | ~has_keys if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~has_keys, 0.0)
    d_value = call.v.shape[-1]
    width = max(call.q.shape[-1], d_value)
    output = F.scaled_dot_product_attention(
        widen(call.q, width),
        widen(call.k, width),
        widen(call.v, width),
        attn_mask=attn_mask,
        dropout_p=call.dropout,
        is_causal=causal,
        scale=call.scale,
        enable_gqa=call.grouped,
    )
    output = output[..., :d_value]
    return output if has_keys is None else output.masked_fill(~has_keys, 0.0)
