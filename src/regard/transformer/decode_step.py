"""One token more of each row: what a decoder computes, without the modules around it.

Between two tokens there is little to compute, and much of the time goes into calling modules. Here the same numbers
come from the same weights in a straight line. It is `Block.forward` written out for one token, and the tests hold it to
that for every choice of the config.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from regard._shapes import Float, Int
from regard.attention import MultiHeadAttention, attend
from regard.attention.hooks import disable_hooks, hook_state
from regard.attention.mask import Mask
from regard.attention.mask.kinds import Padding
from regard.attention.plan import MIN_SCALE
from regard.attention.positions import ALiBi, Learned, Rotary, T5Relative
from regard.transformer.block import Block, BlockInputs
from regard.transformer.decoder import Decoder
from regard.transformer.embeddings import Embeddings
from regard.transformer.feed_forward import ACTIVATIONS, FeedForward
from regard.transformer.kv_caches import KVCaches
from regard.transformer.norm import PlusOneRMSNorm

__all__ = ["FastDecodeStep"]

MIN_PACKED_ROWS, MIN_PACKED_STEPS = 3, 24
"""From so many rows and steps on, float32 weights are copied into the order that oneDNN multiplies in: with a few rows
it is about twice as fast as MKL (PyTorch 2.13: 4 rows by 50,257 x 768, 3.9 against 7.6 ms; 64 rows by 58,101 x 512, 16
against 32 ms), and the copy takes as long as some twenty steps gain."""

LARGEST = 4 * 2**30
"""Weights of more bytes are not copied: they would stand in memory twice."""

KNOWN = {
    ALiBi,
    Block,
    Decoder,
    Embeddings,
    FeedForward,
    Learned,
    MultiHeadAttention,
    PlusOneRMSNorm,
    Rotary,
    T5Relative,
    nn.Dropout,
    nn.Embedding,
    nn.LayerNorm,
    nn.Linear,
    nn.ModuleList,
    nn.RMSNorm,
}
"""The modules that are written out here."""

Function = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor | None], Function]
"""Makes of a weight and a bias what multiplies by them."""


class FastDecodeStep:
    """A decoder, for one token of each row at a time, in evaluation mode and without gradients.

    The weights are read when it is made: make a new one when they change.

    Args:
        decoder: whose step it is.
        rows: how many rows there will be.
        steps: how many steps there will be at the most.
    """

    def __init__(self, decoder: Decoder, *, rows: int = 1, steps: int = 1) -> None:
        weight = decoder.embeddings.token.weight if decoder.lm_head is None else decoder.lm_head.weight
        size = sum(p.numel() * p.element_size() for p in decoder.parameters())
        product = _plain
        pays = rows >= MIN_PACKED_ROWS and steps >= MIN_PACKED_STEPS and size <= LARGEST
        known = weight.dtype == torch.float32 and weight.is_cpu
        if pays and known and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            product = partial(_packed, rows=rows)
        self.decoder = decoder
        self.layers = [_layer(block, product) for block in decoder.blocks]  # type: ignore[arg-type]
        self.norm = None if decoder.norm is None else _norm(decoder.norm)
        self.lm_head = product(weight, decoder.lm_head_bias)
        self.last_mask: Mask | None = None
        self.added: Tensor | None = None

    @staticmethod
    def supports(decoder: Decoder) -> bool:
        """Whether no module would be missed: no hooks, no training, no autocast, none of another kind."""
        device = decoder.embeddings.token.weight.device.type
        if _has_any_global_hook() or torch.is_autocast_enabled(device):  # type: ignore[no-untyped-call]
            return False
        return all(
            type(module) in KNOWN
            and not (module.training or module._forward_hooks or module._forward_pre_hooks)
            and "forward" not in vars(module)  # set on the module itself, as accelerate does
            for module in decoder.modules()
        ) and all(type(parameter) is nn.Parameter for parameter in decoder.parameters())

    def __call__(
        self, ids: Int[Tensor, "rows 1"], caches: KVCaches, context_mask: Mask | None = None
    ) -> Float[Tensor, "rows vocab_size"]:
        """The logits of the token after this one.

        Args:
            ids: the next token of each row.
            caches: filled by `Decoder.forward`, which reads prompts and contexts.
            context_mask: which tokens of the sources may be attended to.
        """
        x, every = self.decoder.embed_inputs(ids, caches=caches, context_mask=context_mask)
        x = x[:, 0]
        if context_mask is not self.last_mask:
            self.last_mask, self.added = context_mask, _additive(context_mask, every[0])
        for layer, reads in zip(self.layers, every, strict=True):
            x = layer(x, reads, self.added)
        caches.num_tokens += 1
        if self.norm is not None:
            x = self.norm(x)
        return self.decoder.logits_with(self.lm_head, x)


def _layer(block: Block, product: Product) -> Callable[[Tensor, BlockInputs, Tensor | None], Tensor]:
    attention = _attention(block.attention, product)
    around_attention = _around(block.norm_position, block.attention_norm, block.attention_post_norm)
    feed_forward = _feed_forward(block.feed_forward, product)
    around_feed_forward = _around(block.norm_position, block.feed_forward_norm, block.feed_forward_post_norm)
    if block.cross_attention is None:

        def layer(x: Tensor, reads: BlockInputs, added: Tensor | None) -> Tensor:
            x = around_attention(x, partial(attention, reads=reads))
            return around_feed_forward(x, feed_forward)

        return layer

    cross = _cross_attention(block.cross_attention, product)
    around_cross = _around(block.norm_position, block.cross_norm, block.cross_post_norm)

    def layer_with_context(x: Tensor, reads: BlockInputs, added: Tensor | None) -> Tensor:
        x = around_attention(x, partial(attention, reads=reads))
        x = around_cross(x, partial(cross, reads=reads, added=added))
        return around_feed_forward(x, feed_forward)

    return layer_with_context


def _around(place: str, norm: nn.Module, after: nn.Module | None) -> Callable[[Tensor, Function], Tensor]:
    """A sub-layer's residual connection and norms."""
    normed = _norm(norm)
    if place == "post":
        return lambda x, sublayer: normed(x + sublayer(x))
    if after is None:
        return lambda x, sublayer: x + sublayer(normed(x))
    normed_after = _norm(after)
    return lambda x, sublayer: x + normed_after(sublayer(normed(x)))


def _attention(module: MultiHeadAttention, product: Product) -> Callable[..., Tensor]:
    heads, kv_heads, width = module.num_heads, module.num_kv_heads, module.d_key
    qkv = product(module.qkv.weight, module.qkv.bias)
    out = _joined(module, product)
    q_norm, k_norm = module.q_norm, module.k_norm
    scale, positions = module.scale, module.positions
    options: dict[str, Any] = {"scale": scale, "softcap": module.softcap, "sinks": module.sinks}
    plain = module.softcap is None and module.sinks is None and (scale is None or scale >= MIN_SCALE)

    def attention(x: Tensor, reads: BlockInputs) -> Tensor:
        rows = x.shape[0]
        # One token: its heads stand side by side in memory already.
        packed = qkv(x).view(rows, heads + 2 * kv_heads, 1, width)
        q, k, v = packed.split_with_sizes((heads, kv_heads, kv_heads), 1)
        if q_norm is not None and k_norm is not None:
            q, k = q_norm(q), k_norm(k)
        if reads.cos_sin is not None:
            assert isinstance(positions, Rotary)
            both = packed.narrow(1, 0, heads + kv_heads) if q_norm is None else torch.cat([q, k], 1)
            q, k = positions.rotate(both, *reads.cos_sin).split_with_sizes((heads, kv_heads), 1)
        assert reads.cache is not None
        k, v = reads.cache.append(k, v)
        if plain and reads.mask is None and reads.bias is None and k.is_cpu:
            # What `attend` ends at, without its checks. NaN it may lose here is in x as well.
            output = _fused(q, k, v, None, scale=scale, enable_gqa=heads != kv_heads)
        else:
            output = attend(q, k, v, reads.mask, bias=reads.bias, **options)
        return out(
            output.reshape(rows, heads * module.d_key)
        )  # by this name `regard.watch` knows whose attention it is

    return attention


def _cross_attention(module: MultiHeadAttention, product: Product) -> Callable[..., Tensor]:
    heads, width = module.num_heads, module.d_key
    if module.d_context is None:
        size = heads * width
        bias = module.qkv.bias
        project = product(module.qkv.weight[:size], None if bias is None else bias[:size])
    else:
        project = product(module.q.weight, module.q.bias)
    out, q_norm = _joined(module, product), module.q_norm
    kv_heads, scale = module.num_kv_heads, module.scale
    options: dict[str, Any] = {"scale": scale, "softcap": module.softcap, "sinks": module.sinks}
    plain = module.softcap is None and module.sinks is None and (scale is None or scale >= MIN_SCALE)

    def cross(x: Tensor, reads: BlockInputs, added: Tensor | None) -> Tensor:
        rows = x.shape[0]
        source = reads.source
        assert source is not None
        assert source.k is not None
        assert source.v is not None
        q = project(x).view(len(source.k), -1, heads, width).transpose(1, 2)  # (sources, heads, rows of each, width)
        if q_norm is not None:
            q = q_norm(q)
        if plain and q.is_cpu and (reads.context_mask is None or added is not None):
            output = _fused(q, source.k, source.v, added, scale=scale, enable_gqa=heads != kv_heads)
        else:
            output = attend(q, source.k, source.v, reads.context_mask, **options)
        return out(output.transpose(1, 2).reshape(rows, heads * module.d_key))  # likewise

    return cross


def _fused(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, *, scale: float | int | None, enable_gqa: bool
) -> Tensor:
    """The kernel that `attend` would end at; whoever listens to `attend` is told."""
    if not hook_state.hooks:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale, enable_gqa=enable_gqa)
    with disable_hooks() as hooks:
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale, enable_gqa=enable_gqa)
    for hook in hooks:
        hook(q, k, v, None, scale=scale, bias=added, softcap=None, sinks=None, dropout=0.0, output=output)
    return output


def _additive(context_mask: Mask | None, reads: BlockInputs) -> Tensor | None:
    """The mask of the sources as what is added to scores, made once; None where `attend` has to look at it."""
    source = reads.source
    if type(context_mask) is not Padding or source is None or source.k is None or not bool(context_mask.lengths.all()):
        return None
    may = context_mask.dense(1, source.k.shape[-2], device=source.k.device)
    return torch.zeros((), dtype=source.k.dtype, device=source.k.device).where(may, -torch.inf)


def _joined(module: MultiHeadAttention, product: Product) -> Function:
    """The output projection, W^O."""
    assert isinstance(module.out_proj, nn.Linear)
    return product(module.out_proj.weight, module.out_proj.bias)


def _feed_forward(module: FeedForward, product: Product) -> Function:
    up, down = (product(linear.weight, linear.bias) for linear in (module.up, module.down))
    activation = ACTIVATIONS[module.activation]
    if not module.gated:
        return lambda x: down(activation(up(x)))

    def gated(x: Tensor) -> Tensor:
        gate, value = up(x).chunk(2, dim=-1)
        return down(activation(gate) * value)

    return gated


def _norm(module: nn.Module) -> Function:
    if type(module) is nn.LayerNorm:
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return module.forward


def _plain(weight: Tensor, bias: Tensor | None) -> Function:
    """X W^T + b."""
    return lambda x: F.linear(x, weight, bias)


def _packed(weight: Tensor, bias: Tensor | None, *, rows: int) -> Function:
    """The same, with the weight in oneDNN's own order."""
    mkldnn = torch.ops.mkldnn
    packed = mkldnn._reorder_linear_weight(weight.detach(), rows)
    return lambda x: mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
