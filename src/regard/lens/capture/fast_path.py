"""PyTorch's fused layers: the inference fast paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``.

Their kernels take the layer's input and weights and return the layer's output. Queries, keys and values are inside, so
they are computed again when a map is read. The layer's output verifies the map: the rest of the layer is computed for
some rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention import mask as masks
from regard.attention.mask import Mask
from regard.lens.capture.call import NUM_SAMPLED_ROWS, CapturedCall, sample_rows
from regard.lens.maps.inputs import OutputSample

KEY_PADDING_MASK_TYPE = 1
"""The kernels' ``mask_type`` of a mask of keys; in other types the mask has queries as well."""


def multi_head_call(args: dict[str, Any], output: Tensor) -> CapturedCall:
    """``nn.MultiheadAttention`` as self-attention.

    Args:
        args: arguments of ``aten._native_multi_head_attention`` by name.
        output: (batch, tokens, embed_dim).
    """
    x = args["query"]
    weight, bias = args["proj_weight"], args["proj_bias"]
    return _fused_call(
        x,
        lambda: _padded(x),
        args,
        output,
        args["num_head"],
        "native multi-head attention",
        lambda heads, _: F.linear(heads, weight, bias),
    )


def encoder_layer_call(args: dict[str, Any], output: Tensor) -> CapturedCall:
    """``nn.TransformerEncoderLayer``.

    Args:
        args: arguments of ``aten._transformer_encoder_layer_fwd`` by name.
        output: (batch, tokens, embed_dim).
    """
    x = args["src"]
    norms = [
        partial(F.layer_norm, normalized_shape=(x.size(-1),), weight=weight, bias=bias, eps=args["eps"])
        for weight, bias in (
            (args["norm_weight_1"], args["norm_bias_1"]),
            (args["norm_weight_2"], args["norm_bias_2"]),
        )
    ]
    norm_first = args["norm_first"]

    def finish_layer(heads: Tensor, x: Tensor) -> Tensor:
        x = x + F.linear(heads, args["proj_weight"], args["proj_bias"])
        x = x if norm_first else norms[0](x)
        inner = F.linear(norms[1](x) if norm_first else x, args["ffn_weight_1"], args["ffn_bias_1"])
        inner = F.gelu(inner) if args["use_gelu"] else F.relu(inner)
        x = x + F.linear(inner, args["ffn_weight_2"], args["ffn_bias_2"])
        return x if norm_first else norms[1](x)

    def attention_input() -> Tensor:
        return norms[0](_padded(x)) if norm_first else _padded(x)

    call = _fused_call(x, attention_input, args, output, args["num_heads"], "native encoder layer", finish_layer)
    return replace(call, submodule="self_attn")


def _fused_call(
    x: Tensor,
    attention_input: Callable[[], Tensor],
    args: dict[str, Any],
    output: Tensor,
    heads: int,
    kernel: str,
    finish_layer: Callable[[Tensor, Tensor], Tensor],
) -> CapturedCall:
    """The call of a fused kernel.

    Args:
        x: the layer's input.
        attention_input: computes the input of the projections.
        args: the kernel's arguments.
        output: the layer's output.
        heads: the number of heads.
        kernel: the kernel's name.
        finish_layer: computes the layer's output for some rows, from the heads' outputs side by side and the input.
    """
    lengths = [len(row) for row in x.unbind()] if x.is_nested else None
    batch, tokens, width = (len(lengths), max(lengths), x.size(-1)) if lengths else x.shape
    d_head = width // heads
    weight, bias = args["qkv_weight"], args["qkv_bias"]

    def project() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            qkv = F.linear(attention_input(), weight, bias).view(batch, tokens, 3, heads, d_head)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    b, i = sample_rows(batch, tokens, x.device) if lengths is None else _last_rows(lengths, x.device)
    sampled_input = _padded(x)[b, i]

    def finish(heads_output: Tensor) -> Tensor:
        with torch.no_grad():
            return finish_layer(heads_output.to(sampled_input.dtype).flatten(1), sampled_input)

    shape_only = torch.empty((), dtype=x.dtype, device=x.device).expand(batch, heads, tokens, d_head)
    return CapturedCall(
        shape_only,
        shape_only,
        shape_only,
        kernel,
        mask=_mask(args, lengths, heads, tokens),
        sample=OutputSample(b, i, _padded(output)[b, i], transform=finish),
        dependencies=tuple(t for t in (x, *args.values()) if isinstance(t, Tensor) and not t.is_nested),
        project=project,
        cross=False,
    )


def _padded(x: Tensor) -> Tensor:
    x = x.detach()
    return x.to_padded_tensor(0.0) if x.is_nested else x


def _last_rows(lengths: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The last token of some texts."""
    texts = range(min(len(lengths), NUM_SAMPLED_ROWS))
    return torch.tensor([*texts], device=device), torch.tensor([lengths[n] - 1 for n in texts], device=device)


def _mask(args: dict[str, Any], lengths: list[int] | None, heads: int, tokens: int) -> Mask | None:
    """The mask as these kernels read it: any number other than 0 blocks."""
    padding = masks.padding(lengths) if lengths is not None else None
    t = args.get("mask")
    if t is None:
        return padding
    blocked = t.detach().to(torch.bool)
    if args.get("mask_type") == KEY_PADDING_MASK_TYPE:
        blocked = blocked[:, None, None]
    elif blocked.ndim == 3:  # (batch * heads, ...)
        blocked = blocked.view(-1, heads, *blocked.shape[-2:])
    mask = masks.blocked(blocked.expand(*blocked.shape[:-2], tokens, tokens))
    return mask if padding is None else padding & mask
