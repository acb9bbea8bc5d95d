"""What is told of tokens that are points in space, or nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from regard.check.target.draft import Draft
from regard.check.target.position_values import Candidate

__all__ = ["coordinate_candidates"]

COORDINATES = (3, 2)
"""How many numbers say where a point is, the likeliest first."""


def coordinate_candidates() -> Iterator[tuple[str, Candidate]]:
    """Where each token stands in space."""
    for count in COORDINATES:
        yield f"{count} numbers of each token", partial(_coordinates, count=count)


def _coordinates(draft: Draft, count: int) -> Tensor:
    """(batch, tokens, count), with these axes in the order of the sequences."""
    sizes = {"b": draft.sizes.batch, "t": draft.tokens, "d": count}
    letters = draft.layout.letters if set(draft.layout.letters) <= set(sizes) else "btd"
    return draft.draw(*(sizes[letter] for letter in letters))
