"""The encoder-only transformer."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from regard._shapes import Float, Int
from regard.attention.mask import Mask
from regard.transformer.block import Block
from regard.transformer.config import Config
from regard.transformer.embeddings import Embeddings

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """A stack of blocks in which every token may attend to every other (paper, section 3.1; BERT).

    Token vectors go in without context and come out with it. In a padded batch, say which tokens are real:
    ``encoder(ids, mask=regard.mask.padding(lengths))``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        segments: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "*batch tokens d_model"]:
        """The token vectors after the last block.

        Args:
            ids: token ids ``(batch, tokens)`` or ``(tokens,)``.
            segments: the segment of each token, 0 by default.
            mask: who may attend; None lets every token attend to every token.

        Raises:
            ValueError: more tokens than the model has positions.
            IndexError: an id outside the vocabulary.
        """
        for x in self.states(ids, segments, mask):
            last = x
        return last

    def states(
        self,
        ids: Int[Tensor, "*batch tokens"],
        segments: Int[Tensor, "*batch tokens"] | None = None,
        mask: Mask | None = None,
    ) -> Iterator[Float[Tensor, "*batch tokens d_model"]]:
        """The token vectors before the first block, then after each block: num_layers + 1 tensors, one at a time."""
        x: Tensor = self.embeddings(ids, segments)
        yield x
        for block in self.blocks:
            x = block(x, mask)
            yield x
