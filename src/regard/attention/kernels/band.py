"""A window as one call of the fused kernel on overlapping blocks, with operations that a graph can contain."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.schedule import band_limits, conjuncts


def run(call: AttentionCall) -> Tensor:
    """Attention under windows: query i attends to keys i + nearest to i + farthest.

    Each block of queries becomes a batch row with its own keys: for a window of n keys, height + n - 1 keys for each
    of queries / height blocks (Beltagy et al. 2020, section 3.1 and appendix A).
    """
    nearest, farthest = band_limits(conjuncts(call.mask), call.queries, call.keys)
    assert nearest is not None
    height = max(128, (farthest - nearest + 1) // 2)
    blocks = call.queries // height + 1
    span = height + farthest - nearest
    # From the first key of block 0 to the last key of the last block, with zeros where there is no key.
    padding = (-nearest, blocks * height + farthest - call.keys)
    k, v = (_blocks(F.pad(t, (0, 0, *padding)), span, height) for t in (call.k, call.v))
    q = _blocks(F.pad(call.q, (0, 0, 0, blocks * height - call.queries)), height, height)

    device = call.q.device
    row, column = torch.arange(height, device=device)[:, None], torch.arange(span, device=device)
    # Column c of block b is the key b * height + nearest + c; row r may attend to columns r to r + farthest - nearest.
    key = torch.arange(blocks, device=device)[:, None, None] * height + nearest + column
    allowed = (column >= row) & (column <= row + farthest - nearest) & (key >= 0) & (key < call.keys)
    allowed = allowed[None].expand(len(call.q), *allowed.shape).flatten(0, 1)[:, None]
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=call.scale, enable_gqa=call.grouped)
    heads, d_value = output.shape[1], output.shape[-1]
    by_block = output.view(len(call.q), blocks, heads, height, d_value).transpose(1, 2)
    return by_block.flatten(2, 3).narrow(2, 0, call.queries)


def _blocks(t: Tensor, size: int, step: int) -> Tensor:
    """(batch, heads, tokens, width) as (batch x blocks, heads, size, width)."""
    return t.unfold(2, size, step).permute(0, 2, 1, 4, 3).flatten(0, 1)
