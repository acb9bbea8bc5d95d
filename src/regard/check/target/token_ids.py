"""Token ids: drawn, and drawn anew."""

from __future__ import annotations

import re

import torch
from torch import Tensor

__all__ = ["PADDING_ID", "drawn_ids", "is_candidate", "other_ids"]

PADDING_ID = 0
"""What padding is in most code: no other token has it, or it would be masked."""

_CANDIDATES = re.compile(r"(?:cand\w*|items?)(?:_(?:ind\w*|idxs?|ids?|items?))?", re.I)
"""In a recommender: what is scored for every sample, as item_indices."""


def is_candidate(name: str) -> bool:
    """Whether ids of this name may be items that are scored, the same for all samples, and no sequence."""
    return _CANDIDATES.fullmatch(name) is not None


def drawn_ids(shape: tuple[int, ...], vocab: int, generator: torch.Generator) -> Tensor:
    """Ids of tokens that are no padding."""
    return torch.randint(1, vocab, shape, generator=generator) % vocab


def other_ids(ids: Tensor, vocab: int, generator: torch.Generator) -> Tensor:
    """Another id for each token; no padding where there was none.

    Args:
        ids: of any integer type.
        vocab: how many there are; where that is not known, 0: then one more than the largest of them.
        generator: of the random numbers.
    """
    vocab = max(2, vocab or int(ids.max()) + 1)
    least = 0 if vocab == 2 or bool((ids == PADDING_ID).any()) else 1
    moved = torch.randint(1, vocab - least, ids.shape, generator=generator).to(ids.dtype)
    return (ids - least + moved) % (vocab - least) + least
