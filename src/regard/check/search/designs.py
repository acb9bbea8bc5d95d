"""Designs that bring numbers of their own: a temperature, a soft-cap, a bias of positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.check.search.observed import Observed

__all__ = ["DESIGNS"]


def _of_softcap(number: Tensor) -> Any:
    return "softcap", number


def _of_shift(number: Tensor) -> Any:
    return "shift", number


def _negative_shift(number: Tensor) -> Any:
    return "shift", -number


def _as_it_is(number: Tensor) -> Any:
    return number


def _one(number: float) -> Callable[[Observed], Tensor]:
    return lambda observed: torch.tensor([number], dtype=torch.float64)


def _each_pair(observed: Observed) -> Tensor:
    state = observed.state({})
    assert state is not None
    return torch.zeros(1, *state.scores.shape[1:], dtype=torch.float64)


def _each_head(observed: Observed) -> Tensor:
    return torch.full_like(_each_pair(observed)[:, :, :1, :1], 3.0)


@dataclass(frozen=True)
class Design:
    """The definition with numbers that are not known."""

    message: str
    slot: str
    """Whose choice the numbers are."""
    start: Callable[[Observed], Tensor]
    """Where the search for them begins."""
    write: Callable[[Tensor], Any]
    """Makes the slot's choice of the numbers."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """The choices of other slots that come with it."""
    by_distance: bool = False
    """Whether the numbers are a table, with one number for each distance."""

    def allows(self, numbers: Tensor) -> bool:
        """Whether the numbers are such: a table has one for each distance, up to what is the same for a whole row."""
        if not self.by_distance:
            return True
        slopes = numbers.diff(dim=-1)
        if slopes.tril(-1).abs().max() < 1e-4:  # no bias, but another precision
            return False
        return bool(numbers.shape[-1] > 2 and (slopes[..., 1:, 1:] - slopes[..., :-1, :-1]).abs().tril(-1).max() < 1e-6)


DESIGNS = (
    Design(
        "cosine of queries and keys, times {number} (a temperature)", "scale", _one(5.0), _as_it_is, {"rounds": "l2"}
    ),
    Design("cosine of queries and keys, a temperature for each head", "scale", _each_head, _as_it_is, {"rounds": "l2"}),
    Design("a soft-cap of {number}", "bias", _one(4.0), _of_softcap),
    Design("a soft-cap of {number}", "bias", _one(30.0), _of_softcap),
    Design(
        "sigmoid instead of softmax, of scores minus {number}",
        "bias",
        _one(0.5),
        _negative_shift,
        {"softmax": "sigmoid"},
    ),
    Design(
        "a bias by distance (ALiBi, or a learned relative bias) is added to the scores",
        "bias",
        _each_pair,
        _of_shift,
        by_distance=True,
    ),
    Design(
        "a relative bias by distance is added to scores that are not scaled (T5)",
        "bias",
        _each_pair,
        _of_shift,
        {"scale": "none"},
        by_distance=True,
    ),
)
