"""A decoder's forward pass for one token of each row, without calls of modules.

One token needs little computation, and much of its time would go into calling modules. `FastDecodeStep` is
`Block.forward` written out for one token; the tests compare both for every choice of the config.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from regard._shapes import Float, Int
from regard.attention import MultiHeadAttention, attend
from regard.attention.mask import Mask
from regard.attention.mask.kinds import Padding
from regard.attention.plan import HALF_PRECISION, MIN_SCALE
from regard.attention.positions import ALiBi, Learned, Rotary, T5Relative
from regard.transformer.block import Block, BlockInputs, PlusOneRMSNorm
from regard.transformer.decoder import Decoder
from regard.transformer.embeddings import Embeddings
from regard.transformer.encoder import Encoder
from regard.transformer.feed_forward import ACTIVATIONS, FeedForward
from regard.transformer.kv_caches import KVCaches
from regard.transformer.stack import Stack

MIN_PACKED_STEPS = 24
"""With at least as many steps weights are copied into oneDNN's own layout, which a product reads up to twice as fast;
about twenty steps save as much time as the copy takes. One row of float32 gains nothing, and is not copied."""

MIN_ONEDNN_SIZE = 2**16
"""Smaller weights (256 x 256) are left to PyTorch: a call of oneDNN takes 10 microseconds longer to begin."""

MAX_PACKED_BYTES = 4 * 2**30
"""Larger models are not copied, since their weights would be in memory twice."""

SUPPORTED_MODULES = {
    ALiBi,
    Block,
    Decoder,
    Embeddings,
    Encoder,
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
"""The modules whose computation is known here: all that `Decoder` and `Encoder` are made of."""

TensorFunction = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor | None], TensorFunction]
"""Makes a linear function of a weight and a bias."""


class SharedInputs(NamedTuple):
    """What is made once in a step, for every layer."""

    rotate: TensorFunction | None
    """Rotates queries and keys by the token's rotary position."""
    context_bias: Tensor | None
    """The context mask, as a bias of the scores."""


class FastDecodeStep:
    """A decoder for one token of each row at a time, in evaluation mode and without gradients.

    The constructor reads the weights: make a new step when they change.

    Args:
        decoder: the decoder.
        batch_size: the number of rows.
        max_steps: the most steps that will follow.
    """

    def __init__(self, decoder: Decoder, *, batch_size: int = 1, max_steps: int = 1) -> None:
        weight = decoder.embeddings.token.weight if decoder.lm_head is None else decoder.lm_head.weight
        size = sum(p.numel() * p.element_size() for p in decoder.parameters())
        make_linear = _linear
        if weight.is_cpu and weight.dtype in _onednn_dtypes():
            gains = batch_size > 1 or weight.dtype != torch.float32
            packs = gains and max_steps >= MIN_PACKED_STEPS and size <= MAX_PACKED_BYTES
            make_linear = partial(_onednn_linear, packed_rows=batch_size if packs else None)
        self.decoder = decoder
        self.layers = [_layer(block, make_linear) for block in decoder.blocks]  # type: ignore[arg-type]
        self.norm = None if decoder.norm is None else _norm(decoder.norm)
        self.lm_head = make_linear(weight, decoder.lm_head_bias)
        self._context_mask: Mask | None = None
        self._context_bias: Tensor | None = None

    @staticmethod
    def supports(decoder: Decoder) -> bool:
        """Whether the step computes the decoder's forward: only known modules, no hooks, no training, no autocast."""
        return is_unmodified(decoder)

    def __call__(
        self, ids: Int[Tensor, "rows 1"], caches: KVCaches, context_mask: Mask | None = None
    ) -> Float[Tensor, "rows vocab_size"]:
        """The logits of the token after this one.

        Args:
            ids: the next token of each row.
            caches: filled by `Decoder.forward`, which reads prompts and contexts.
            context_mask: which tokens of the context may be attended to.
        """
        x, block_inputs = self.decoder.embed_inputs(ids, caches=caches, context_mask=context_mask)
        x = x[:, 0]
        if context_mask is not self._context_mask:
            self._context_mask, self._context_bias = context_mask, _mask_as_bias(context_mask, block_inputs[0])
        cos_sin = block_inputs[0].cos_sin
        shared = SharedInputs(None if cos_sin is None else _rotation(*cos_sin), self._context_bias)
        for layer, inputs in zip(self.layers, block_inputs, strict=True):
            x = layer(x, inputs, shared)
        caches.num_tokens += 1
        if self.norm is not None:
            x = self.norm(x)
        return self.decoder.logits_with(self.lm_head, x)


def is_unmodified(stack: Stack) -> bool:
    """Whether a stack computes what this package's classes say: only known modules, no hooks, no training, no autocast.

    Its calls may then be made otherwise, and nobody sees the difference.
    """
    device = stack.embeddings.token.weight.device.type
    if _has_any_global_hook() or torch.is_autocast_enabled(device):  # type: ignore[no-untyped-call]
        return False
    return all(
        type(module) in SUPPORTED_MODULES
        and not (module.training or module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in vars(module)  # set on the module itself, as accelerate does
        and not (isinstance(module, Rotary) and (module.interleaved or module.rotary_dim < module.width))
        for module in stack.modules()
    ) and all(type(parameter) is nn.Parameter for parameter in stack.parameters())


def _layer(block: Block, make_linear: MakeLinear) -> Callable[[Tensor, BlockInputs, SharedInputs], Tensor]:
    attention = _attention(block.attention, make_linear)
    attention_residual = _residual(block.norm_position, block.attention_norm, block.attention_post_norm)
    feed_forward = _feed_forward(block.feed_forward, make_linear)
    feed_forward_residual = _residual(block.norm_position, block.feed_forward_norm, block.feed_forward_post_norm)
    if block.cross_attention is None:

        def layer(x: Tensor, inputs: BlockInputs, shared: SharedInputs) -> Tensor:
            x = attention_residual(x, partial(attention, inputs=inputs, shared=shared))
            return feed_forward_residual(x, feed_forward)

        return layer

    cross = _cross_attention(block.cross_attention, make_linear)
    cross_residual = _residual(block.norm_position, block.cross_norm, block.cross_post_norm)

    def layer_with_context(x: Tensor, inputs: BlockInputs, shared: SharedInputs) -> Tensor:
        x = attention_residual(x, partial(attention, inputs=inputs, shared=shared))
        x = cross_residual(x, partial(cross, inputs=inputs, context_bias=shared.context_bias))
        return feed_forward_residual(x, feed_forward)

    return layer_with_context


def _residual(
    norm_position: str, norm_module: nn.Module, post_norm_module: nn.Module | None
) -> Callable[[Tensor, TensorFunction], Tensor]:
    """A sub-layer's residual connection and norms."""
    norm = _norm(norm_module)
    if norm_position == "post":
        return lambda x, sublayer: norm(x + sublayer(x))
    if post_norm_module is None:
        return lambda x, sublayer: x + sublayer(norm(x))
    post_norm = _norm(post_norm_module)
    return lambda x, sublayer: x + post_norm(sublayer(norm(x)))


def _attention(module: MultiHeadAttention, make_linear: MakeLinear) -> Callable[..., Tensor]:
    heads, kv_heads, width = module.num_heads, module.num_kv_heads, module.d_key
    qkv = make_linear(module.qkv.weight, module.qkv.bias)
    out = _output_projection(module, make_linear)
    q_norm, k_norm = (None if norm is None else _norm(norm) for norm in (module.q_norm, module.k_norm))
    scale = module.scale
    options: dict[str, Any] = {"scale": scale, "softcap": module.softcap, "sinks": module.sinks}
    is_plain = module.softcap is None and module.sinks is None and (scale is None or scale >= MIN_SCALE)

    def attention(x: Tensor, inputs: BlockInputs, shared: SharedInputs) -> Tensor:
        rows = x.shape[0]
        # The heads of one token are side by side in memory already.
        packed = qkv(x).view(rows, heads + 2 * kv_heads, 1, width)
        q, k, v = packed.split_with_sizes((heads, kv_heads, kv_heads), 1)
        if q_norm is not None and k_norm is not None:
            q, k = q_norm(q), k_norm(k)
        if shared.rotate is not None:
            both = packed.narrow(1, 0, heads + kv_heads) if q_norm is None else torch.cat([q, k], 1)
            q, k = shared.rotate(both).split_with_sizes((heads, kv_heads), 1)
        assert inputs.cache is not None
        k, v = inputs.cache.append(k, v)
        if is_plain and inputs.mask is None and inputs.bias is None and k.is_cpu:
            # The kernel that `attend` would call, without its checks. A NaN that the kernel may drop is in x as well.
            output = _fused(q, k, v, None, scale=scale, enable_gqa=heads != kv_heads)
        else:
            output = attend(q, k, v, inputs.mask, bias=inputs.bias, **options)
        # `regard.watch` finds the attention by the name `module` in this frame.
        return out(output.reshape(rows, heads * module.d_key))

    return attention


def _cross_attention(module: MultiHeadAttention, make_linear: MakeLinear) -> Callable[..., Tensor]:
    heads, width = module.num_heads, module.d_key
    if module.d_context is None:
        size = heads * width
        bias = module.qkv.bias
        project = make_linear(module.qkv.weight[:size], None if bias is None else bias[:size])
    else:
        project = make_linear(module.q.weight, module.q.bias)
    out = _output_projection(module, make_linear)
    q_norm = None if module.q_norm is None else _norm(module.q_norm)
    kv_heads, scale = module.num_kv_heads, module.scale
    options: dict[str, Any] = {"scale": scale, "softcap": module.softcap, "sinks": module.sinks}
    is_plain = module.softcap is None and module.sinks is None and (scale is None or scale >= MIN_SCALE)

    def cross(x: Tensor, inputs: BlockInputs, context_bias: Tensor | None) -> Tensor:
        rows = x.shape[0]
        source = inputs.cross_cache
        assert source is not None
        assert source.k is not None
        assert source.v is not None
        q = project(x).view(len(source.k), -1, heads, width).transpose(1, 2)  # (sources, heads, rows of each, width)
        if q_norm is not None:
            q = q_norm(q)
        if is_plain and q.is_cpu and (inputs.context_mask is None or context_bias is not None):
            output = _fused(q, source.k, source.v, context_bias, scale=scale, enable_gqa=heads != kv_heads)
        else:
            output = attend(q, source.k, source.v, inputs.context_mask, **options)
        return out(output.transpose(1, 2).reshape(rows, heads * module.d_key))  # `module` as above

    return cross


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """PyTorch's kernel, for half precision in float32 as in `attend`; for one query that is several times as fast."""
    if q.dtype not in HALF_PRECISION:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **options)
    bias = None if bias is None else bias.float()
    output: Tensor = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=bias, **options)
    return output.to(q.dtype)


def _mask_as_bias(context_mask: Mask | None, inputs: BlockInputs) -> Tensor | None:
    """The context mask as a bias, so that it is converted once; None where `attend` must handle the mask."""
    source = inputs.cross_cache
    if type(context_mask) is not Padding or source is None or source.k is None or not bool(context_mask.lengths.all()):
        return None
    allowed = context_mask.dense(1, source.k.shape[-2], device=source.k.device)
    return torch.zeros((), dtype=source.k.dtype, device=source.k.device).where(allowed, -torch.inf)


def _output_projection(module: MultiHeadAttention, make_linear: MakeLinear) -> TensorFunction:
    """The output projection, W^O."""
    assert isinstance(module.out_proj, nn.Linear)
    return make_linear(module.out_proj.weight, module.out_proj.bias)


def _feed_forward(module: FeedForward, make_linear: MakeLinear) -> TensorFunction:
    up, down = (make_linear(linear.weight, linear.bias) for linear in (module.up, module.down))
    activation = ACTIVATIONS[module.activation]
    if not module.gated:
        return lambda x: down(activation(up(x)))

    def gated(x: Tensor) -> Tensor:
        gate, value = up(x).chunk(2, dim=-1)
        return down(activation(gate) * value)

    return gated


def _norm(module: nn.Module) -> TensorFunction:
    if type(module) is nn.LayerNorm:
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return _rms_norm(module) if isinstance(module, nn.RMSNorm) and module.elementwise_affine else module.forward


def _rms_norm(module: nn.RMSNorm) -> TensorFunction:
    """RMSNorm, x / sqrt(mean(x^2) + eps) * weight, as x * weight * sqrt(size) / hypot(length of x, sqrt(size * eps)).

    These are half as many operations as in PyTorch's own norm, and they round otherwise.
    """
    dtype = torch.promote_types(module.weight.dtype, torch.float32)
    (size,) = module.normalized_shape
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    weight = module.weight.detach().to(dtype)
    weight = math.sqrt(size) * (1.0 + weight if type(module) is PlusOneRMSNorm else weight)
    least_length = torch.tensor(math.sqrt(size * eps), dtype=dtype)

    def rms_norm(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype).hypot(least_length)
        result: Tensor = x * weight / length
        return result.to(x.dtype)

    return rms_norm


def _rotation(cos: Tensor, sin: Tensor) -> TensorFunction:
    """`Rotary.rotate`, the same numbers: x (cos, cos) + (b, a) (-sin, sin) for each head x = (a, b)."""
    if cos.ndim == 3:  # each row has a position of its own, the same for every head
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    pairs = cos.shape[-1]
    cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def rotate(x: Tensor) -> Tensor:
        wide = x.to(cos.dtype)
        return (wide * cos + wide.roll(pairs, -1) * sin).to(x.dtype)

    return rotate


def _linear(weight: Tensor, bias: Tensor | None) -> TensorFunction:
    """X W^T + b."""
    return lambda x: F.linear(x, weight, bias)


def _onednn_dtypes() -> set[torch.dtype]:
    """The dtypes that oneDNN multiplies quickly on this CPU. PyTorch has a kernel of its own for rows of float16."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return set()
    return {torch.float32, torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else {torch.float32}


def _onednn_linear(weight: Tensor, bias: Tensor | None, *, packed_rows: int | None) -> TensorFunction:
    """X W^T + b by oneDNN, with the weight as it is or packed for a number of rows.

    For the float32 of a few rows `F.linear` calls MKL, which takes two to four times as long: PyTorch 2.13 on two cores
    of an EPYC 9005, 49,152 x 576 by 1 row, 6.8 against 2.5 ms; by 2 rows, 15.8 against 3.8 ms, packed 2.8 ms.
    """
    if weight.numel() < MIN_ONEDNN_SIZE:
        return _linear(weight, bias)
    linear = torch.ops.mkldnn._linear_pointwise.default
    weight = weight.detach()
    if packed_rows is not None:
        weight = torch.ops.mkldnn._reorder_linear_weight(weight, packed_rows)
    return lambda x: linear(x, weight, bias, "none", [], "")
