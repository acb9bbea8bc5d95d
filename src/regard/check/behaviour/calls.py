"""Calls of one object after another, cases that are changed, and how far two outputs are apart."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.recipes.case import Case
from regard.check.sandbox.answer import error_text
from regard.check.search.calls import Failed, ProbeCall
from regard.check.search.tensors import tensors_in
from regard.check.target.preparation import copied

__all__ = [
    "call_object",
    "copied_module",
    "first_line_of",
    "joined",
    "num_queries_and_keys",
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


def call_object(call: ProbeCall, module: nn.Module | None, given: Mapping[str, Any]) -> Any:
    """Like `ProbeCall.result`, of the object itself: what one call leaves in it, the next one finds.

    Raises:
        Failed: it raised.
    """
    function: Any = module if module is not None else call.subject.function
    parameters = call.subject.called
    first = [name for name in given if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY]
    try:
        with call.subject.settings.on():
            return function(*(given[name] for name in first), **{n: v for n, v in given.items() if n not in first})
    except Exception as error:
        raise Failed(error_text(error)) from error


def copied_module(call: ProbeCall) -> nn.Module | None:
    """A copy of the module that is called, to be called several times; None of a function."""
    return None if call.module is None else copied(call.module).train(call.training)


def output_of_object(call: ProbeCall, module: nn.Module | None, case: Case) -> Tensor:
    """The output of an object that may have been called before."""
    return call.output(case, call_object(call, module, call.arguments(case)))


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


def num_queries_and_keys(case: Case) -> tuple[int, int]:
    """How many queries and keys a case has."""
    if case.q is not None and case.k is not None:
        return case.q.shape[-2], case.k.shape[-2]
    assert case.x is not None
    return case.x.shape[1], (case.x if case.context is None else case.context).shape[1]


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
