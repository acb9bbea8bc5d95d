"""One layer: self-attention, in some decoders cross-attention, and the feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from regard._shapes import Float
from regard.attention import MultiHeadAttention
from regard.attention.bias import PositionBias
from regard.attention.cache import Cache, CrossAttentionCache
from regard.attention.mask import Mask
from regard.attention.positions import Rotary
from regard.transformer.config import Config
from regard.transformer.feed_forward import FeedForward
from regard.transformer.norm import make_norm

__all__ = ["Block", "BlockInputs"]


class BlockInputs(NamedTuple):
    """What a block reads beside the token vectors."""

    mask: Mask | None = None
    """Who may attend to whom in self-attention."""
    cos_sin: tuple[Tensor, Tensor] | None = None
    """Cos and sin of the tokens' rotary positions."""
    bias: Tensor | PositionBias | None = None
    """What positions add to the scores."""
    cache: Cache | None = None
    """Keys and values of the tokens before."""
    context: Tensor | None = None
    """The encoder's output, for cross-attention."""
    context_mask: Mask | None = None
    """Which of the encoder's tokens may be attended to."""
    source: CrossAttentionCache | None = None
    """Their keys and values, computed once."""


NO_INPUTS = BlockInputs()


class Block(nn.Module):
    """The sub-layers of one layer, each with a residual connection and a norm (paper, section 3.1).

    ``post``: LayerNorm(x + Sublayer(x)), the paper's. ``pre``: x + Sublayer(LayerNorm(x)), where the residual stream
    is never normed (Xiong et al. 2020). ``both``: x + norm(Sublayer(norm(x))).

    Args:
        config: sizes and choices.
        rotary: positions that turn queries and keys, the same in every layer.
        d_context: width of an encoder's output to attend to (paper, section 3.2.3, "encoder-decoder attention"); None:
            a layer without cross-attention.
    """

    def __init__(self, config: Config, *, rotary: Rotary | None = None, d_context: int | None = None) -> None:
        super().__init__()
        self.norm_position = config.norm_position
        both = self.norm_position == "both"
        self.attention = _attention(config, rotary=rotary)
        self.attention_norm = make_norm(config)
        self.attention_post_norm = make_norm(config) if both else None
        self.cross_attention: MultiHeadAttention | None = None
        if d_context is not None:
            self.cross_attention = _attention(config, d_context=None if d_context == config.d_model else d_context)
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
        self, x: Float[Tensor, "*batch tokens d_model"], reads: BlockInputs = NO_INPUTS
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The token vectors after this layer."""
        x = self._around(
            x,
            lambda y: self.attention(y, mask=reads.mask, cache=reads.cache, cos_sin=reads.cos_sin, bias=reads.bias),
            self.attention_norm,
            self.attention_post_norm,
        )
        if self.cross_attention is not None:
            cross = self.cross_attention
            x = self._around(
                x,
                lambda y: cross(y, reads.context, mask=reads.context_mask, cache=reads.source),
                self.cross_norm,
                self.cross_post_norm,
            )
        return self._around(x, self.feed_forward, self.feed_forward_norm, self.feed_forward_post_norm)

    def _around(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module, after: nn.Module | None
    ) -> Tensor:
        """A sub-layer with its residual connection and its norms."""
        change = sublayer(x if self.norm_position == "post" else norm(x))
        if after is not None:
            change = after(change)
        if self.training:
            change = self.dropout(change)
        result: Tensor = x + change
        return norm(result) if self.norm_position == "post" else result


def _attention(config: Config, *, rotary: Rotary | None = None, d_context: int | None = None) -> MultiHeadAttention:
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
        scale=config.attention_scale,
        softcap=config.softcap,
        sinks=config.sinks,
        qk_norm=config.norm_eps if config.qk_norm else None,
    )
