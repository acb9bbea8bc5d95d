"""The encoder-only transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.mask import Mask
from regard.transformer.config import Config
from regard.transformer.feed_forward import ACTIVATIONS
from regard.transformer.stack import Stack


class Encoder(Stack):
    """A stack of blocks in which every token may attend to every other (paper, section 3.1; BERT).

    In a padded batch a mask says which tokens are real: ``encoder(ids, mask=regard.mask.padding(lengths))``.
    """

    def __init__(self, config: Config) -> None:
        if config.patches is not None:
            raise ValueError("an Encoder reads texts: config.patches belongs to an ImageEncoder")
        super().__init__(config, causal=False)
        self.mlm_head = MLMHead(config) if config.mlm_head else None

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        token_type_ids: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
        *,
        positions: Int[Tensor, "*positions_batch tokens"] | None = None,
        left_padding: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The token vectors after the last block.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            token_type_ids: the type of each token, 0 by default.
            mask: who may attend; None lets every token attend to every token.
            positions: the position of each token; 0, 1, 2, ... by default. Each packed document starts at 0.
            left_padding: how many tokens at the left of each row are padding.

        Raises:
            ValueError: more tokens than the model has positions.
            IndexError: an id outside the vocabulary.
        """
        for x in self.hidden_states(ids, token_type_ids, mask, positions=positions, left_padding=left_padding):
            last = x
        return last

    def logits(
        self, hidden_states: Float[Tensor, "*batch tokens d_model"]
    ) -> Float[Tensor, "*batch tokens vocab_size"]:
        """The logits of the masked-language-model head.

        Raises:
            ValueError: an encoder without a head.
        """
        if self.mlm_head is None:
            raise ValueError("this encoder has no masked-language-model head (mlm_head=False)")
        logits: Tensor = self.mlm_head(hidden_states, self.embeddings.token.weight)
        return logits


class MLMHead(nn.Module):
    """Logits = LayerNorm(activation(x W + b)) E^T + c, E the token vectors (BERT; Devlin et al. 2019, section 3.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.activation = config.activation
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.weight = None
        if not config.tie_word_embeddings:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, config.d_model).normal_(std=config.d_model**-0.5))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self, x: Float[Tensor, "*batch tokens d_model"], token: Float[Tensor, "vocab_size d_model"]
    ) -> Float[Tensor, "*batch tokens vocab_size"]:
        """Logits of every token."""
        x = self.norm(ACTIVATIONS[self.activation](self.transform(x)))
        return F.linear(x, token if self.weight is None else self.weight, self.bias)
