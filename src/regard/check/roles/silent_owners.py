"""Queries and keys of which an activation made zeros: no token is seen in them, and their place tells which it is."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.check.roles.contractions import Contraction
from regard.check.roles.owners import NONE, Owners
from regard.check.trace.operation import Trace, reached

__all__ = ["is_behind_an_activation", "with_silent_owners"]

_ZEROING = frozenset({"relu", "threshold", "hardtanh", "clamp_min", "hardswish"})
_FIELDS = ("stream", "token", "sample", "head")
_MATRICES = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution"})


def is_behind_an_activation(trace: Trace, place: tuple[int, int]) -> bool:
    """Whether what an operation takes was made by an activation that makes zeros, and by no matrix since then.

    Args:
        trace: a run.
        place: the index of the operation, and the number among its tensors.
    """
    before = trace.operations[: place[0]]
    bent = {one.storage for each in before if each.name.rstrip("_") in _ZEROING for one in each.outputs}
    return bool(bent) and trace.taken(place).storage in reached(
        bent, [each for each in before if each.name not in _MATRICES]
    )


def with_silent_owners(found: Owners, product: Contraction, trace: Trace, place: tuple[int, int]) -> Owners:
    """The owners of one factor of some scores, where those that are not seen are what the others at their place are.

    Of a score that is exactly 0, and as far as the place along one axis tells the owner of all others: the token of a
    query by its row, the sample by the first axis, whatever heads are in it.

    Args:
        found: by score, as far as it is seen.
        product: the scores.
        trace: the run.
        place: where the factor is taken.
    """
    scores = product.output.data
    zeros = (scores == 0).flatten()
    unseen = {name for name in _FIELDS if bool(((getattr(found, name) == NONE) & zeros).any())}
    if not unseen & {"token", "sample"} or not is_behind_an_activation(trace, place):
        return found
    filled = {name: _by_place(getattr(found, name), zeros, scores.shape) for name in unseen}
    of_all = {name: each for name, each in filled.items() if each is not None}
    return replace(found, **of_all) if len(of_all) == len(filled) else found


def _by_place(numbers: Tensor, zeros: Tensor, shape: torch.Size) -> Tensor | None:
    """Numbers with those that are missing as their place along one axis tells; None where no axis tells all.

    Args:
        numbers: by score; `NONE` where none is seen, and in all scores where there is nothing of the kind.
        zeros: which scores are 0.
        shape: of the scores.
    """
    known, missing = numbers != NONE, (numbers == NONE) & zeros
    if not bool(known.any()):
        return numbers
    for axis, size in enumerate(shape):
        place = torch.arange(size).view(-1, *[1] * (len(shape) - axis - 1)).expand(shape).flatten()
        low, high = (
            torch.full((size,), NONE).scatter_reduce(0, place[known], numbers[known], end, include_self=False)
            for end in ("amin", "amax")
        )
        if torch.equal(low, high) and bool(torch.isin(place[missing], place[known]).all()):
            return torch.where(missing, low[place], numbers)
    return None
