"""A window as one call of the fused kernel on overlapping pieces, in operations that a graph can hold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import BandLimits

__all__ = ["run"]


def run(call: AttentionCall, within: BandLimits) -> Tensor:
    """Attention of query i over keys i + nearest to i + farthest.

    Each block becomes a batch row of its own, with the keys that it reaches: for a window of n keys,
    height + n - 1 keys for each of queries / height blocks (Beltagy et al. 2020, section 3.1 and appendix A).
    """
    nearest, farthest = within
    assert nearest is not None
    height = max(128, (farthest - nearest + 1) // 2)
    blocks = call.queries // height + 1
    span = height + farthest - nearest
    # Keys from the first that block 0 reaches to the last that the last block reaches, zeros where there are none.
    missing = (-nearest, blocks * height + farthest - call.keys)
    k, v = (_pieces(F.pad(t, (0, 0, *missing)), span, height) for t in (call.k, call.v))
    q = _pieces(F.pad(call.q, (0, 0, 0, blocks * height - call.queries)), height, height)

    device = call.q.device
    row, column = torch.arange(height, device=device)[:, None], torch.arange(span, device=device)
    # Column c of block b is the key b * height + nearest + c; row r reaches columns r to r + farthest - nearest.
    key = torch.arange(blocks, device=device)[:, None, None] * height + nearest + column
    may = (column >= row) & (column <= row + farthest - nearest) & (key >= 0) & (key < call.keys)
    may = may[None].expand(len(call.q), *may.shape).flatten(0, 1)[:, None]
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=may, scale=call.scale, enable_gqa=call.grouped)
    heads, d_value = output.shape[1], output.shape[-1]
    by_block = output.view(len(call.q), blocks, heads, height, d_value).transpose(1, 2)
    return by_block.flatten(2, 3).narrow(2, 0, call.queries)


def _pieces(t: Tensor, size: int, step: int) -> Tensor:
    """(batch, heads, tokens, width) as (batch x pieces, heads, size, width)."""
    return t.unfold(2, size, step).permute(0, 2, 1, 4, 3).flatten(0, 1)
