"""The input of a transformer: a vector for each token, its position and its segment."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.positions import Learned, sinusoidal
from regard.transformer.config import Config

__all__ = ["Embeddings"]


class Embeddings(nn.Module):
    """Token vectors, times sqrt(d_model) in the paper (section 3.4), plus what positions and segments add.

    Which parts there are is the config's choice: sinusoidal (section 3.5) or learned positions, or neither; segments
    and a norm on the sum in BERT (Devlin et al. 2019, figure 2).

    Args:
        config: sizes and choices.
        token: token vectors that another stack has too.
    """

    def __init__(self, config: Config, token: nn.Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        self.token = token or nn.Embedding(config.vocab_size, config.d_model)
        if token is None:
            # So that vectors times sqrt(d_model), and logits, begin at about 1.
            nn.init.normal_(self.token.weight, std=config.d_model**-0.5)
        self.position = None
        if config.positions == "learned" and config.max_positions is not None:
            self.position = Learned(config.first_position + config.max_positions, config.d_model)
        self.segment = nn.Embedding(config.num_segments, config.d_model) if config.num_segments else None
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        segments: Int[Tensor, "*batch tokens"] | None = None,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The vectors that the first block reads."""
        token, position, segment = self.parts(ids, segments, positions)
        total = token
        for part in (position, segment):
            if part is not None:
                total = total + part
        if self.norm is not None:
            total = self.norm(total)
        return self.dropout(total) if self.training else total

    def parts(
        self,
        ids: Int[Tensor, "*batch tokens"],
        segments: Int[Tensor, "*batch tokens"] | None = None,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What is added for each token: its own vector, its position's, its segment's; None for what there is not.

        Args:
            ids: token ids.
            segments: the segment of each token; 0 by default.
            positions: where each token stands; 0, 1, 2, ... by default.

        Raises:
            ValueError: more tokens than positions; segments for a model without them.
            IndexError: an id or a segment that has no vector.
        """
        config = self.config
        token = _look_up("token id", self.token, ids)
        if config.scale_embedding:
            token = token * torch.tensor(math.sqrt(config.d_model), dtype=token.dtype)
        position = segment = None
        if positions is None:
            positions = torch.arange(ids.shape[-1], device=ids.device)
        if self.position is not None:
            position = self.position.at(positions + config.first_position if config.first_position else positions)
        elif config.positions == "sinusoidal":
            position = sinusoidal(positions, config.d_model, halves=config.sinusoidal_halves, dtype=token.dtype)
        if self.segment is not None:
            segment = _look_up("segment", self.segment, torch.zeros_like(ids) if segments is None else segments)
        elif segments is not None:
            raise ValueError("segments were given, but this model has none (num_segments=0)")
        return token, position, segment


def _look_up(what: str, table: nn.Embedding, ids: Tensor) -> Tensor:
    try:
        vectors: Tensor = table(ids)
    except IndexError:
        low, high = int(ids.min()), int(ids.max())
        raise IndexError(f"every {what} must be 0 to {table.num_embeddings - 1}; got {low} to {high}") from None
    return vectors
