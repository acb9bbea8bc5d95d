"""Calls of one object after another, cases that are changed, and how far two outputs are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.recipes.case import Case
from regard.check.search.calls import Failed, ProbeCall
from regard.check.target.running import tensors_in

__all__ = [
    "first_line_of",
    "joined",
    "output_gap",
    "output_of_object",
    "output_tensor",
    "with_other_numbers",
    "with_other_token",
    "with_tensors",
]

MOVED = 1e-9
"""Relative to the largest number of an output: less is rounding."""
MAX_CHARACTERS = 120
"""Of the text of an error in a note."""


# Calls. ---------------------------------------------------------------------------------------------------------------


def output_of_object(call: ProbeCall, module: nn.Module | None, case: Case) -> Tensor:
    """The output of an object that may have been called before."""
    return call.output(case, call.result_of(module, call.arguments(case)))


def output_tensor(call: ProbeCall, case: Case, result: Any) -> Tensor:
    """The tensor that is the output, as it was returned: with its gradient, in its own precision."""
    found, call = list(tensors_in(result)), replace(call, which=[])
    call.output(case, result)
    return found[call.which[0][0]]


# Cases. ---------------------------------------------------------------------------------------------------------------


def with_tensors(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
    """The same case with all its tensors changed, in the copies that it hands over."""
    names = ("q", "k", "v") if case.q is not None else ("x", "context", "values")
    held: dict[str, Any] = {name: getattr(case, name) for name in names}
    made: dict[int, Any] = {id(each): change(each.clone()) for each in held.values() if each is not None}
    return replace(case, **{name: made[id(each)] for name, each in held.items() if each is not None})


def with_other_numbers(tensor: Tensor) -> Tensor:
    """Other numbers of the same size."""
    return tensor.flip(-1) * 1.3 + 0.7


def with_other_token(case: Case, at: int) -> Case:
    """Another token at one position; a function's queries stay."""

    def change(tensor: Tensor) -> Tensor:
        tensor[..., at, :] = with_other_numbers(tensor[..., at, :])
        return tensor

    changed = with_tensors(case, change)
    return replace(changed, q=case.q) if case.q is not case.k else changed


# Outputs and words. ---------------------------------------------------------------------------------------------------


def output_gap(one: Tensor, other: Tensor) -> float:
    """The largest difference of two outputs; 0 where it is rounding, inf where only one of them is a number."""
    if one.shape != other.shape:
        return math.inf
    if not torch.equal(one.isfinite(), other.isfinite()):
        return math.inf
    one, other = (each[one.isfinite()] for each in (one, other))
    if not one.numel():
        return 0.0
    gap = (one - other).abs().max().item()
    return gap if gap > MOVED * max(1.0, one.abs().max().item()) else 0.0


def joined(names: Sequence[str]) -> str:
    """Names as a sentence lists them: "queries, keys and values"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def first_line_of(error: Failed) -> str:
    """The first line of what was raised."""
    text = str(error).strip().splitlines()[0]
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}..."
