"""What a recipe has computed of a case: every step of the definition by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.check.recipes.case import Case

__all__ = ["STEP_NAMES", "Choices", "State"]

Choices = Mapping[str, Any]
"""For each slot that is not the definition's, its choice: a word, or a number that was measured."""
STEP_NAMES = ("q", "k", "v", "scores", "scaled", "biased", "masked", "weights", "output", "heads", "projected")
"""The steps in their order, as `regard.steps` names them."""


class State:
    """Everything computed so far: a step without None in its type is there as soon as its slot was computed."""

    case: Case
    x: Tensor | None
    """None for a function of q, k and v, as are context, values, heads and projected."""
    context: Tensor | None
    values: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    may: Tensor | None
    """Who may attend, as it is understood; None where every query sees every key."""
    scores: Tensor
    scaled: Tensor
    biased: Tensor
    masked: Tensor
    weights: Tensor
    output: Tensor
    heads: Tensor | None
    projected: Tensor | None
    """None without an output projection."""
    scaling: float
    """What the scores were multiplied by."""
    last: Tensor
    """What the call returns."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.x, self.context, self.values = case.x, case.context, case.values
        self.may = self.heads = self.projected = None
        if case.q is not None:
            assert case.k is not None
            assert case.v is not None
            self.q, self.k, self.v = case.q, case.k, case.v

    def plus(self, **computed: Any) -> State:
        """The same with more computed. Thousands are made: `copy.copy` would take longer than the tensors."""
        made = object.__new__(State)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(computed)
        return made
