"""Examples of different lengths in one row of tokens, none of it padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Int

__all__ = ["NOTHING", "Packed", "packed"]

NOTHING = -100
"""The target where nothing is to be predicted: PyTorch's cross-entropy passes over it."""


class Packed(NamedTuple):
    """Texts one after the other, as one row."""

    ids: Int[Tensor, "1 tokens"]
    """Token ids."""
    documents: Int[Tensor, "1 tokens"]
    """Which text each token belongs to, for `regard.mask.documents`."""
    positions: Int[Tensor, "1 tokens"]
    """Where it stands in its text."""


def packed(texts: Sequence[Sequence[int]]) -> Packed:
    """Pack the token ids of some texts. Texts of one length side by side are computed together, so sort them."""
    lengths = torch.tensor([len(text) for text in texts])
    ids = torch.tensor([token for text in texts for token in text])
    documents = torch.arange(len(texts)).repeat_interleave(lengths)
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return Packed(ids[None], documents[None], (torch.arange(len(ids)) - starts)[None])
