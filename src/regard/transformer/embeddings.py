"""The input of a transformer: vectors for each token, its position and its token type."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.positions import Learned, sinusoidal
from regard.transformer.config import Config


class Embeddings(nn.Module):
    """Token vectors, times sqrt(d_model) in the paper (section 3.4), plus vectors for positions and token types.

    The config says which there are: sinusoidal (section 3.5) or learned positions, or neither; token types and a norm
    on the sum in BERT (Devlin et al. 2019, figure 2).

    Args:
        config: sizes and choices.
        token: a token embedding that another stack shares.
    """

    def __init__(self, config: Config, token: nn.Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        self.token = token or nn.Embedding(config.vocab_size, config.d_model)
        if token is None:
            # With this, vectors times sqrt(d_model) and logits are about 1 at first.
            nn.init.normal_(self.token.weight, std=config.d_model**-0.5)
        self.position = None
        if config.positions == "learned" and config.max_positions is not None:
            self.position = Learned(config.first_position + config.max_positions, config.d_model)
        self.token_type = nn.Embedding(config.num_token_types, config.d_model) if config.num_token_types else None
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        token_type_ids: Int[Tensor, "*batch tokens"] | None = None,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The input of the first block."""
        token, position, token_type = self.components(ids, token_type_ids, positions)
        total = token
        for component in (position, token_type):
            if component is not None:
                total = total + component
        if self.norm is not None:
            total = self.norm(total)
        return self.dropout(total) if self.training else total

    def components(
        self,
        ids: Int[Tensor, "*batch tokens"],
        token_type_ids: Int[Tensor, "*batch tokens"] | None = None,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The summands of a token's input: vectors of the token, the position, the token type; None for a missing one.

        Args:
            ids: token ids.
            token_type_ids: the type of each token; 0 by default.
            positions: the position of each token; 0, 1, 2, ... by default.

        Raises:
            ValueError: more tokens than positions; token types for a model without them.
            IndexError: a token id or a token type without a vector.
        """
        config = self.config
        token = _look_up("token id", self.token, ids)
        if config.scale_embedding:
            token = token * torch.tensor(math.sqrt(config.d_model), dtype=token.dtype)
        position = token_type = None
        if positions is None:
            positions = torch.arange(ids.shape[-1], device=ids.device)
        if self.position is not None:
            position = self.position.embed(positions + config.first_position if config.first_position else positions)
        elif config.positions == "sinusoidal":
            position = sinusoidal(positions, config.d_model, halves=config.sinusoidal_halves, dtype=token.dtype)
        if self.token_type is not None:
            types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
            token_type = _look_up("token type", self.token_type, types)
        elif token_type_ids is not None:
            raise ValueError("token_type_ids were given, but this model has none (num_token_types=0)")
        return token, position, token_type


def _look_up(what: str, table: nn.Embedding, ids: Tensor) -> Tensor:
    try:
        vectors: Tensor = table(ids)
    except IndexError:
        low, high = int(ids.min()), int(ids.max())
        raise IndexError(f"every {what} must be 0 to {table.num_embeddings - 1}; got {low} to {high}") from None
    return vectors
