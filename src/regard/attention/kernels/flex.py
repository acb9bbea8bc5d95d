"""PyTorch's kernels for a GPU: FlexAttention for any mask, variable-length attention for packed documents."""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from regard.attention.kernels.block_mask import block_mask, lookup_block_mask
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.flash import widen
from regard.attention.kernels.schedule import band_limits, conjuncts
from regard.attention.mask.documents import Documents

MAX_COMPILED = 256
"""The largest number of compiled kernels: of kinds of masks, widths, dtypes, soft-caps, with gradients and without.
PyTorch's own limit is 8."""


def run(call: AttentionCall) -> Tensor:
    """Any mask, soft-cap and sinks, by `torch.nn.attention.flex_attention`, which skips tiles that are empty.

    It is compiled on a GPU, with the mask in it: once for each kind of mask, in seconds. A function that PyTorch cannot
    compile is evaluated before. On the CPU it runs uncompiled and without gradients, for tests only.
    """
    if call.mask is None:
        return _run(call, None)
    if len(call.original_qk[0].shape) > 4:  # several batch axes become one, which the mask's function does not know
        return _run(call, lookup_block_mask(call))
    blocks = block_mask(call)
    try:
        return _run(call, blocks)
    except torch._dynamo.exc.TorchDynamoException:
        return _run(call, lookup_block_mask(call))


def _run(call: AttentionCall, blocks: Any) -> Tensor:
    from torch.nn.attention.flex_attention import AuxRequest

    d_value = call.v.shape[-1]
    # A compiled kernel needs a width of 16 or more.
    widths = (max(16, -(-t.shape[-1] // 16) * 16) for t in (call.q, call.k, call.v))
    q, k, v = (widen(t, width) for t, width in zip((call.q, call.k, call.v), widths, strict=True))
    with torch._dynamo.config.patch(recompile_limit=MAX_COMPILED):
        result = _flex(call.q.is_cuda)(
            q,
            k,
            v,
            score_mod=_soft_cap(call.softcap) if call.softcap is not None else None,
            block_mask=blocks,
            scale=call.scale,
            enable_gqa=call.grouped,
            return_aux=AuxRequest(lse=True) if call.sinks is not None else None,
        )
    if call.sinks is None:
        return result[..., :d_value]  # type: ignore[no-any-return]
    output, aux = result
    share = torch.sigmoid(aux.lse - call.sinks.to(aux.lse.dtype)[:, None])  # the part of each row that the sink leaves
    return output[..., :d_value] * share[..., None].to(output.dtype)  # type: ignore[no-any-return]


def documents(call: AttentionCall) -> Tensor:
    """Packed documents by `torch.nn.attention.varlen`: half precision on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, tokens, _ = call.q.shape
    (packed,) = (mask for mask in conjuncts(call.mask) if isinstance(mask, Documents))
    ids = packed.ids.to(call.q.device)
    ids = ids.expand(batch, tokens) if ids.ndim == 1 else ids.repeat(batch // len(ids), 1)
    nearest, farthest = band_limits([mask for mask in conjuncts(call.mask) if mask is not packed], tokens, tokens)
    # The batch rows become one row of tokens; a document starts where the id changes or a batch row starts.
    starts = torch.ones_like(ids, dtype=torch.bool)
    starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
    ends = torch.full((1,), batch * tokens, device=ids.device)
    bounds = torch.cat([starts.flatten().nonzero()[:, 0], ends]).to(torch.int32)
    longest = int(bounds.diff().max())
    # It needs one width, a multiple of 8.
    d_value = call.v.shape[-1]
    width = -(-max(call.q.shape[-1], d_value) // 8) * 8
    q, k, v = (widen(t, width).transpose(1, 2).flatten(0, 1) for t in (call.q, call.k, call.v))
    options: dict[str, Any] = {
        "scale": call.scale,
        "window_size": (-1 if nearest is None else -nearest, min(farthest, tokens)),
    }
    if call.grouped and "enable_gqa" in varlen_options():
        options["enable_gqa"] = True
    elif call.grouped:
        k, v = (t.repeat_interleave(heads // call.k.shape[1], dim=1) for t in (k, v))
    output = varlen_attn(q, k, v, bounds, bounds, longest, longest, **options)
    assert isinstance(output, Tensor)
    return output.view(batch, tokens, heads, width).transpose(1, 2)[..., :d_value]


@cache
def varlen_options() -> frozenset[str]:
    """What this version's `varlen_attn` takes: PyTorch 2.10 has no scale and no window, 2.11 no groups of heads."""
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(signature(varlen_attn).parameters)


@cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Whole or not at all: in parts, PyTorch would compute every pair, in memory for all of them.
    return torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention


@cache
def _soft_cap(softcap: float | int) -> Any:
    # One function per soft-cap: a new function in every call would be compiled again.
    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped
