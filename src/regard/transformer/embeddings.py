"""The input of a transformer: a vector for each token, its position and its segment."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.positions import Learned
from regard.transformer.config import Config

__all__ = ["Embeddings"]


class Embeddings(nn.Module):
    """LayerNorm(token + position + segment), as in BERT (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = Learned(config.max_positions, config.d_model)
        self.segment = nn.Embedding(config.num_segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids: Int[Tensor, "*batch tokens"], segments: Int[Tensor, "*batch tokens"] | None = None
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The vectors that the first block reads."""
        token, position, segment = self.parts(ids, segments)
        result: Tensor = self.dropout(self.norm(token + position + segment))
        return result

    def parts(
        self, ids: Int[Tensor, "*batch tokens"], segments: Int[Tensor, "*batch tokens"] | None = None
    ) -> tuple[
        Float[Tensor, "*batch tokens d_model"], Float[Tensor, "tokens d_model"], Float[Tensor, "*batch tokens d_model"]
    ]:
        """The three vectors that are added for each token: its own, its position's, its segment's.

        Raises:
            ValueError: more tokens than positions.
            IndexError: an id or a segment that has no vector.
        """
        segments = torch.zeros_like(ids) if segments is None else segments
        position = self.position.rows(ids.shape[-1])
        return _look_up("token id", self.token, ids), position, _look_up("segment", self.segment, segments)


def _look_up(what: str, table: nn.Embedding, ids: Tensor) -> Tensor:
    try:
        vectors: Tensor = table(ids)
    except IndexError:
        low, high = int(ids.min()), int(ids.max())
        raise IndexError(f"every {what} must be 0 to {table.num_embeddings - 1}; got {low} to {high}") from None
    return vectors
