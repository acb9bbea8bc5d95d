"""The numbers that make a transformer, in the paper's words."""

from __future__ import annotations

from dataclasses import dataclass

from regard.transformer.feed_forward import ACTIVATIONS

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and choices of an encoder-only transformer.

    Raises:
        ValueError: a size below 1, a share outside 0 to 1, a width that does not divide into heads, an unknown
            activation.
    """

    vocab_size: int
    """How many different tokens there are."""
    d_model: int
    """Width of every token vector between the layers."""
    num_layers: int
    """How many blocks are stacked; N in the paper."""
    num_heads: int
    """Attention heads of each block; h in the paper."""
    d_ff: int
    """Width of the feed-forward network's hidden layer."""
    max_positions: int
    """The longest input, in tokens."""
    num_segments: int = 2
    """How many kinds of segment a token can belong to (BERT's sentence A and B)."""
    activation: str = "gelu"
    """The feed-forward network's activation."""
    norm_eps: float = 1e-12
    """Added to the variance in every layer norm."""
    dropout: float = 0.1
    """Share of each sub-layer's output dropped in training (paper, section 5.4)."""
    attention_dropout: float = 0.1
    """Share of the attention weights dropped in training."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_layers", "num_heads", "d_ff", "max_positions", "num_segments"):
            size = getattr(self, name)
            if type(size) is not int or not 1 <= size < 2**31:
                raise ValueError(f"{name}={size!r} must be a whole number, at least 1 and below 2**31")
        for name in ("norm_eps", "dropout", "attention_dropout"):
            share = getattr(self, name)
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise ValueError(f"{name}={share!r} must be a number from 0 to 1")
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into num_heads={self.num_heads}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
