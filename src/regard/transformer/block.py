"""One layer: self-attention, in some decoders cross-attention, and the feed-forward network, with their norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float
from regard.attention import MultiHeadAttention
from regard.attention.bias import PositionBias
from regard.attention.cache import Cache, CrossAttentionCache
from regard.attention.mask import Mask
from regard.attention.positions import Rotary
from regard.transformer.config import Config
from regard.transformer.feed_forward import FeedForward


class BlockInputs(NamedTuple):
    """The inputs of a block besides the token vectors."""

    mask: Mask | None = None
    """Who may attend to whom in self-attention."""
    cos_sin: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of the tokens' rotary positions."""
    bias: Tensor | PositionBias | None = None
    """The position bias, which is added to the scores."""
    cache: Cache | None = None
    """Keys and values of the previous tokens."""
    context: Tensor | None = None
    """The encoder's output, for cross-attention."""
    context_mask: Mask | None = None
    """Which of the encoder's tokens may be attended to."""
    cross_cache: CrossAttentionCache | None = None
    """Keys and values of the encoder's tokens, computed once."""


NO_INPUTS = BlockInputs()


class PlusOneRMSNorm(nn.RMSNorm):
    """x / rms(x) * (1 + weight): a weight of zero changes nothing (Gemma)."""

    def reset_parameters(self) -> None:
        """Start as the norm without a weight."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalize each vector, half precision in float32."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = 1.0 + self.weight.to(dtype)
        return F.rms_norm(x.to(dtype), self.normalized_shape, weight, self.eps).to(x.dtype)


def make_norm(config: Config) -> nn.Module:
    """The config's norm: LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    if config.norm == "layer":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)
    norm = PlusOneRMSNorm if config.norm_plus_one else nn.RMSNorm
    return norm(config.d_model, eps=config.norm_eps)


class Block(nn.Module):
    """The sub-layers of one layer, each with a residual connection and a norm (paper, section 3.1).

    ``post``: LayerNorm(x + Sublayer(x)), the paper's. ``pre``: x + Sublayer(LayerNorm(x)), where the residual stream
    is never normalized (Xiong et al. 2020). ``both``: x + norm(Sublayer(norm(x))).

    Args:
        config: sizes and choices.
        layer: the number of the layer, from 0.
        rotary: rotary positions, the same in every layer.
        d_context: width of the encoder's output to attend to (paper, section 3.2.3, "encoder-decoder attention"); None:
            a layer without cross-attention.
    """

    def __init__(
        self, config: Config, layer: int, *, rotary: Rotary | None = None, d_context: int | None = None
    ) -> None:
        super().__init__()
        self.norm_position = config.norm_position
        both = self.norm_position == "both"
        self.attention = _attention(config, layer, rotary=rotary)
        self.attention_norm = make_norm(config)
        self.attention_post_norm = make_norm(config) if both else None
        self.cross_attention: MultiHeadAttention | None = None
        if d_context is not None:
            width = None if d_context == config.d_model else d_context
            self.cross_attention = _attention(config, layer, d_context=width)
            self.cross_norm = make_norm(config)
            self.cross_post_norm = make_norm(config) if both else None
        self.feed_forward = FeedForward(
            config.d_model,
            config.d_ff,
            activation=config.activation,
            gated=config.gated,
            bias=config.feed_forward_bias,
        )
        self.feed_forward_norm = make_norm(config)
        self.feed_forward_post_norm = make_norm(config) if both else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "*batch tokens d_model"], inputs: BlockInputs = NO_INPUTS
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The token vectors after this layer."""
        x = self._residual(
            x,
            lambda y: self.attention(y, mask=inputs.mask, cache=inputs.cache, cos_sin=inputs.cos_sin, bias=inputs.bias),
            self.attention_norm,
            self.attention_post_norm,
        )
        if self.cross_attention is not None:
            cross = self.cross_attention
            x = self._residual(
                x,
                lambda y: cross(y, inputs.context, mask=inputs.context_mask, cache=inputs.cross_cache),
                self.cross_norm,
                self.cross_post_norm,
            )
        return self._residual(x, self.feed_forward, self.feed_forward_norm, self.feed_forward_post_norm)

    def _residual(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module, post_norm: nn.Module | None
    ) -> Tensor:
        """A sub-layer with its residual connection and its norms."""
        update = sublayer(x if self.norm_position == "post" else norm(x))
        if post_norm is not None:
            update = post_norm(update)
        if self.training:
            update = self.dropout(update)
        result: Tensor = x + update
        return norm(result) if self.norm_position == "post" else result


def _attention(
    config: Config, layer: int, *, rotary: Rotary | None = None, d_context: int | None = None
) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        d_key=config.d_key,
        d_context=d_context,
        bias=config.attention_bias,
        out_bias=config.out_bias,
        positions=rotary,
        dropout=config.attention_dropout,
        scale=config.scale(layer),
        softcap=config.softcap,
        sinks=config.sinks,
        qk_norm=config.norm_eps if config.qk_norm else None,
    )
