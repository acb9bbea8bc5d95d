"""One layer of the encoder."""

from __future__ import annotations

from torch import Tensor, nn

from regard._shapes import Float
from regard.attention import MultiHeadAttention
from regard.attention.mask import Mask
from regard.transformer.config import Config
from regard.transformer.feed_forward import FeedForward

__all__ = ["Block"]


class Block(nn.Module):
    """Self-attention, then the feed-forward network, each as LayerNorm(x + Sublayer(x)) (paper, section 3.1).

    The norm after the sum is the paper's and BERT's "post-norm".
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            config.d_model, config.num_heads, bias=True, dropout=config.attention_dropout
        )
        self.attention_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, activation=config.activation)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "*batch tokens d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The token vectors after this layer."""
        x = self.attention_norm(x + self.dropout(self.attention(x, mask=mask)))
        x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x
