"""What is told of tokens that are points in space, or nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from regard.check.target.draft import Draft
from regard.check.target.position_values import Candidate

__all__ = ["coordinate_candidates", "pair_candidates"]

COORDINATES = (3, 2)
"""How many numbers say where a point is, the likeliest first."""


def coordinate_candidates() -> Iterator[tuple[str, Candidate]]:
    """Where each token stands in space."""
    for count in COORDINATES:
        yield f"{count} numbers of each token", partial(_coordinates, count=count)


def pair_candidates() -> Iterator[tuple[str, Candidate]]:
    """A whole number for each two tokens, the distance of both in a ring."""
    yield "of each two", _distances
    yield "of each two of each sample", lambda draft: _distances(draft).repeat(draft.sizes.batch, 1, 1)


def _distances(draft: Draft) -> Tensor:
    """(tokens, tokens)."""
    places = torch.arange(draft.tokens)
    ahead = (places - places[:, None]) % draft.tokens
    return torch.minimum(ahead, ahead.mT)


def _coordinates(draft: Draft, count: int) -> Tensor:
    """(batch, tokens, count), with these axes in the order of the sequences."""
    sizes = {"b": draft.sizes.batch, "t": draft.tokens, "d": count}
    letters = draft.layout.letters if set(draft.layout.letters) <= set(sizes) else "btd"
    return draft.draw(*(sizes[letter] for letter in letters))
