"""Whether two implementations give the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.equivalence.calls import CallPlan, CannotCompareError, random_inputs
from regard.check.recipes.case import Case

__all__ = ["TOLERANCE", "is_comparable", "largest_difference", "modes", "relative_difference"]

TOLERANCE = 1e-9
"""Of the largest number, in float64."""
LENGTHS = (1, 2, 5, 7)


def modes(a: CallPlan, b: CallPlan) -> list[bool]:
    """Calls of both that should agree: whether those are told to be causal that are not so by themselves."""
    found = [False] if a.is_causal == b.is_causal else []
    may_be_told = [each for each in (a, b) if not each.is_causal]
    if may_be_told and all(each.mask is not None for each in may_be_told):
        found.append(True)
    return found or [False]


def _inputs(a: CallPlan, b: CallPlan) -> Iterator[tuple[Case, bool]]:
    """Inputs of several lengths, and whether there are as many keys as queries."""
    for number, tokens in enumerate(LENGTHS):
        alone = "b" not in a.layout or "b" not in b.layout
        inputs = random_inputs(a, 40 + number, batch=1 if alone else 3, tokens=tokens)
        if inputs.q is not None and a.heads != b.heads:
            one = {name: getattr(inputs, name)[:, :1] for name in "qkv"}
            inputs = replace(inputs, **one)
        yield inputs, inputs.q is None
        if inputs.x is not None and a.source_count == b.source_count > 1:
            keys = (inputs.x.shape[0], tokens + 2)
            context, values = (random_inputs(a, 50 + n, batch=keys[0], tokens=keys[1]).x for n in (number, -number))
            yield replace(inputs, context=context, values=values if a.source_count == 3 else None), False
        if inputs.q is not None:
            assert inputs.k is not None
            assert inputs.v is not None
            yield replace(inputs, k=inputs.k[:, :, :tokens], v=inputs.v[:, :, :tokens]), True


def largest_difference(a: CallPlan, b: CallPlan) -> tuple[float, int]:
    """The largest difference of the outputs, as a part of the largest output, and how many calls were compared.

    The first call that refutes them is the last.

    Raises:
        CannotCompareError: none could be called.
    """
    worst, calls = 0.0, 0
    for causal in modes(a, b):
        for inputs, square in _inputs(a, b):
            if (causal or a.is_causal or b.is_causal) and not square:
                continue
            one, other = a(inputs, causal=causal), b(inputs, causal=causal)
            if one.shape != other.shape:
                return math.inf, calls + 1
            worst = max(worst, relative_difference(one, other))
            calls += 1
            if worst > TOLERANCE:
                return worst, calls
    return worst, calls


def relative_difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a part of the largest number."""
    if one.shape != other.shape or not bool(torch.equal(one.isfinite(), other.isfinite())):
        return math.inf
    finite = one.isfinite()
    if not bool(finite.any()):
        return 0.0
    largest = max(float(one[finite].abs().max()), float(other[finite].abs().max()), 1e-3)
    return float((one[finite] - other[finite]).abs().max()) / largest


def is_comparable(a: CallPlan, b: CallPlan) -> None:
    """Refuse what has no call in common.

    Raises:
        CannotCompareError: one is a module and the other a function, or their widths differ.
    """
    if (a.module is None) != (b.module is None):
        raise CannotCompareError("one is a module with weights or of tokens, the other a function of q, k and v")
    if a.width != b.width:
        raise CannotCompareError(f"A takes tokens of {a.width} numbers, B of {b.width}: compare the same sizes")
