"""The output of attention from PyTorch's fused kernel: the definition's result without its matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float
from regard.attention.arguments import allowed, check
from regard.attention.mask import Causal, Mask

__all__ = ["attend"]


def attend(
    q: Float[Tensor, "*batch_heads queries d_key"],
    k: Float[Tensor, "*batch_kv_heads keys d_key"],
    v: Float[Tensor, "*batch_kv_heads keys d_value"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "..."] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "*batch_heads queries d_value"]:
    """The output of `regard.steps`, from the fused kernel.

    Memory is linear in the number of tokens without a mask, with `mask.padding`, and with `mask.causal` whose first
    query is the first key. Other masks, and every bias, go to the kernel as a tensor of their own size, up to
    queries x keys. On the CPU, PyTorch leaves its fused kernel for dropout and for a bias that needs a gradient.

    What is blocked must still be finite: the kernel adds -inf to a blocked score, and multiplies its value by 0.

    Args:
        q: queries ``(..., heads, queries, d_key)``; the heads axis and all before it may be absent.
        k: keys ``(..., kv_heads, keys, d_key)``; kv_heads divides heads.
        v: values ``(..., kv_heads, keys, d_value)``.
        mask: who may attend, from `regard.mask`; None lets everyone.
        scale: what the scores are multiplied by; 1 / sqrt(d_key) by default.
        bias: added to the scaled scores; broadcastable to ``(..., heads, queries, keys)``.
        softcap: refused: the fused kernel has none. `regard.steps` honours it.
        sinks: refused: the fused kernel has none. `regard.steps` honours them.
        dropout: share of the weights set to zero, the rest scaled up to make good; always applied when above 0.

    Raises:
        NotImplementedError: an option that the fused kernel cannot honour.
        TypeError: a bare tensor as mask; dtypes that differ.
        ValueError: shapes that do not fit; a dropout outside 0 to 1.
    """
    check(q, k, v, mask, bias=bias, softcap=softcap, sinks=sinks)
    for name, value in (("softcap", softcap), ("sinks", sinks)):
        if value is not None:
            raise NotImplementedError(
                f"attend cannot honour {name}={value}: the fused kernel has none. Use regard.steps"
            )
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout={dropout}: a share between 0 and 1")

    scale = q.shape[-1] ** -0.5 if scale is None else scale
    queries, keys, d_value = q.shape[-2], k.shape[-2], v.shape[-1]
    # With the flag, PyTorch 2.13's CPU kernel multiplies its own -inf by the scale, which must therefore be above 0.
    is_causal = isinstance(mask, Causal) and mask.first(queries, keys) == 0 and bias is None and scale > 0
    attn_mask = None if mask is None or is_causal else allowed(mask, q, k)
    if bias is not None:
        attn_mask = bias if attn_mask is None else torch.where(attn_mask, bias, -torch.inf)

    # The fused kernel wants (batch, heads, tokens, width), the numbers of a width side by side, and one width for q, k
    # and v: anything else falls back to the unfused path in silence (7 to 11 times slower, with the T x T matrix in
    # memory). Zeros appended to q and k leave every score as it is; zeros appended to v come out and are cut off.
    width = max(q.shape[-1], d_value)
    output = F.scaled_dot_product_attention(
        _widen(_four_axes(q), width),
        _widen(_four_axes(k), width),
        _widen(_four_axes(v), width),
        attn_mask=None if attn_mask is None else _beside(attn_mask, q),
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q.ndim > 2 and q.shape[-3] != k.shape[-3],
    )
    return output[..., :d_value].reshape(*q.shape[:-1], d_value)


def _four_axes(t: Tensor) -> Tensor:
    """(..., heads, tokens, width) as (batch, heads, tokens, width)."""
    heads = t.shape[-3] if t.ndim > 2 else 1
    return t.reshape(t.shape[:-3].numel(), heads, *t.shape[-2:])


def _widen(t: Tensor, width: int) -> Tensor:
    if t.shape[-1] < width:
        return F.pad(t, (0, width - t.shape[-1]))
    return t if t.stride(-1) == 1 else t.contiguous()


def _beside(t: Tensor, q: Tensor) -> Tensor:
    """A mask or bias with the same four axes as q, broadcast over the batch where it was."""
    t = t[(None,) * (max(q.ndim, 4) - t.ndim)]
    if t.ndim == 4:
        return t
    batch = q.shape[:-3]
    return t.expand(*batch, *t.shape[-3:]).reshape(batch.numel(), *t.shape[-3:])
