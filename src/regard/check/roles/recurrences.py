"""Rows that a recurrent layer returns: each is made of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from regard.check.roles.contractions import MATRICES
from regard.check.roles.tags import SOFTMAXES
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["recurrent_outputs"]

JOINS = frozenset({"cat", "stack"})
FEWEST_STEPS = 3


def recurrent_outputs(trace: Trace) -> set[int]:
    """The indices of the operations that join the states of a recurrent layer, one for each token.

    A state that asks, or is read, is a row of its own, though it depends on all tokens before (Luong et al. 2015).
    """
    return {each.index for each in trace if each.name in JOINS and _are_states(each, trace)}


def _are_states(operation: Operation, trace: Trace) -> bool:
    """Whether it joins states, those of a layer that reads from the end as well, whose last one comes first."""
    states = operation.inputs
    if len(states) < FEWEST_STEPS or len({each.shape for each in states}) > 1 or states[0].data.ndim < 2:
        return False
    if len({each.storage for each in states}) < len(states):
        return False
    return any(_follow(each, operation, trace) for each in (states, states[::-1]))


def _follow(states: Sequence[TensorRecord], operation: Operation, trace: Trace) -> bool:
    """Whether each state is made of the one before it, by a matrix, and none by what attends."""
    made = trace.made_of([states[0].storage])
    between = [each for each in trace.operations[: operation.index] if {one.storage for one in each.inputs} & made]
    by_a_matrix = any(each.name in MATRICES and any(one.learned for one in each.inputs) for each in between)
    if not by_a_matrix or any(each.name in SOFTMAXES for each in between):
        return False  # sums that run on, or what attends in every step
    return all(later.storage in trace.made_of([earlier.storage]) for earlier, later in pairwise(states))
