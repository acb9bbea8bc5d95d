"""PyTorch's fused layers: ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` on their inference fast path.

The kernel takes the layer's input and weights and gives the layer's output; queries, keys and values never come out of
it. They are computed again when somebody asks, and the map is proved by what the layer came to: the rest of the layer
is computed for a few rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.mask import Mask
from regard.lens.capture.call import Seen, rows
from regard.lens.maps.inputs import OutputSample

__all__ = ["encoder_layer", "multi_head"]

KEYS, PAIRS_AND_KEYS = 1, 2
"""What a mask_type says: a mask of keys, or of keys and pairs in one; otherwise of pairs."""


def multi_head(given: dict[str, Any], output: Tensor) -> Seen:
    """``nn.MultiheadAttention`` of a sequence over itself.

    Args:
        given: arguments of ``aten._native_multi_head_attention`` by name.
        output: (batch, tokens, embed_dim).
    """
    x = given["query"]
    weight, bias = given["proj_weight"], given["proj_bias"]
    return _seen(
        x,
        x,
        given,
        output,
        given["num_head"],
        "native multi-head attention",
        lambda heads, _: F.linear(heads, weight, bias),
    )


def encoder_layer(given: dict[str, Any], output: Tensor) -> Seen:
    """``nn.TransformerEncoderLayer``.

    Args:
        given: arguments of ``aten._transformer_encoder_layer_fwd`` by name.
        output: (batch, tokens, embed_dim).
    """
    x = given["src"]
    norms = [
        partial(F.layer_norm, normalized_shape=(x.size(-1),), weight=weight, bias=bias, eps=given["eps"])
        for weight, bias in (
            (given["norm_weight_1"], given["norm_bias_1"]),
            (given["norm_weight_2"], given["norm_bias_2"]),
        )
    ]
    first = given["norm_first"]

    def rest(heads: Tensor, x: Tensor) -> Tensor:
        x = x + F.linear(heads, given["proj_weight"], given["proj_bias"])
        x = x if first else norms[0](x)
        inner = F.linear(norms[1](x) if first else x, given["ffn_weight_1"], given["ffn_bias_1"])
        inner = F.gelu(inner) if given["use_gelu"] else F.relu(inner)
        x = x + F.linear(inner, given["ffn_weight_2"], given["ffn_bias_2"])
        return x if first else norms[1](x)

    def attended() -> Tensor:
        return norms[0](_padded(x)) if first else _padded(x)

    seen = _seen(x, attended, given, output, given["num_heads"], "native encoder layer", rest)
    return replace(seen, within="self_attn")


def _seen(x: Tensor, attended: Any, given: dict[str, Any], output: Tensor, heads: int, kernel: str, rest: Any) -> Seen:
    """What such a kernel did.

    Args:
        x: the layer's input.
        attended: what is projected: x, or a function that makes it.
        given: the kernel's arguments.
        output: what the layer came to.
        heads: how many.
        kernel: its name.
        rest: what the layer does with the heads' joined output of some rows and with their input.
    """
    lengths = [len(row) for row in x.unbind()] if x.is_nested else None
    batch, tokens, width = (len(lengths), max(lengths), x.size(-1)) if lengths else x.shape
    size = width // heads
    weight, bias = given["qkv_weight"], given["qkv_bias"]

    def projected() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            source = attended() if callable(attended) else _padded(attended)
            packed = F.linear(source, weight, bias).view(batch, tokens, 3, heads, size)
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    b, i = rows(batch, tokens, x.device) if lengths is None else _last(lengths, x.device)
    kept = _padded(x)[b, i]

    def finish(heads_output: Tensor) -> Tensor:
        with torch.no_grad():
            return rest(heads_output.to(kept.dtype).flatten(1), kept)  # type: ignore[no-any-return]

    shape = torch.empty((), dtype=x.dtype, device=x.device).expand(batch, heads, tokens, size)
    return Seen(
        shape,
        shape,
        shape,
        kernel,
        mask=_mask(given, lengths, heads, tokens),
        sample=OutputSample(b, i, _padded(output)[b, i], transform=finish),
        also=tuple(t for t in (x, *given.values()) if isinstance(t, Tensor) and not t.is_nested),
        projected=projected,
        cross=False,
    )


def _padded(x: Tensor) -> Tensor:
    x = x.detach()
    return x.to_padded_tensor(0.0) if x.is_nested else x


def _last(lengths: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The last token of some texts."""
    few = range(min(len(lengths), 8))
    return torch.tensor([*few], device=device), torch.tensor([lengths[n] - 1 for n in few], device=device)


def _mask(given: dict[str, Any], lengths: list[int] | None, heads: int, tokens: int) -> Mask | None:
    """Where it is not zero nobody may attend, whatever the number: so does the kernel read its mask."""
    mask = masks.padding(lengths) if lengths is not None else None
    t = given.get("mask")
    if t is None:
        return mask
    blocked = t.detach().to(torch.bool)
    if given.get("mask_type") == KEYS:
        blocked = blocked[:, None, None]
    elif blocked.ndim == 3:  # (batch * heads, ...)
        blocked = blocked.view(-1, heads, *blocked.shape[-2:])
    spoken = masks.blocked(blocked.expand(*blocked.shape[:-2], tokens, tokens))
    return spoken if mask is None else mask & spoken
