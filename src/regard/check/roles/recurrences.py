"""Rows that a recurrent layer returns: each is made of the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from regard.check.roles.contractions import MATRICES
from regard.check.roles.tags import SOFTMAXES
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["JOINS", "joined_ends", "recurrent_outputs"]

JOINS = frozenset({"cat", "stack"})
FEWEST_STEPS = 3


def recurrent_outputs(trace: Trace) -> set[int]:
    """The indices of the operations that join the states of a recurrent layer, one for each token.

    A state that asks, or is read, is a row of its own, though it depends on all tokens before (Luong et al. 2015). Of a
    layer that reads from both ends a row is what joins the two states of a token: each of the two is half of it.
    """
    directions = _directions(trace)
    of_ends = set(_joined(trace, directions))
    for joined, halves in _of_both_ends(trace, directions):
        for half in halves:
            directions.pop(half, None)
        directions[joined] = 0
    return set(directions) | of_ends


def joined_ends(trace: Trace) -> set[int]:
    """The indices of the operations that join the last states of several directions or layers, of each sample.

    All of them are one row of this sample: it is what is known of the whole text.
    """
    return set(_joined(trace, _directions(trace)))


def _joined(trace: Trace, directions: Mapping[int, int]) -> Iterator[int]:
    """The same, by what joins the states of each direction."""
    ends = {trace.operations[index].inputs[-1 if way > 0 else 0].storage for index, way in directions.items()}
    for each in trace:
        if each.name in JOINS and len(each.inputs) > 1 and {one.storage for one in each.inputs} <= ends:
            yield each.index


def _directions(trace: Trace) -> dict[int, int]:
    """The operations that join the states of each direction, and where the first one stands; see `_direction`."""
    return {each.index: found for each in trace if each.name in JOINS and (found := _direction(each, trace))}


def _of_both_ends(trace: Trace, directions: Mapping[int, int]) -> Iterator[tuple[int, list[int]]]:
    """What joins the states of two directions along their channels, token by token; and what joined those of each.

    The states of one's own loop, or of a layer of its own that was handed the tokens from the end, are turned around
    first. Where that was forgotten, a row is of two tokens, and so none.
    """
    if len(directions) < 2:
        return
    made = {trace.operations[index].outputs[0].storage: (index, way) for index, way in directions.items()}
    turned = dict(made)
    for each in trace:
        if each.name == "flip" and each.inputs[0].storage in made:
            index, way = made[each.inputs[0].storage]
            turned[each.outputs[0].storage] = (index, -way)
    for each in trace:
        if each.name != "cat" or len(each.inputs) != 2 or any(one.storage not in turned for one in each.inputs):
            continue
        axis, dims = each.args[1] if len(each.args) > 1 else 0, each.inputs[0].data.ndim
        (one, way), (other, other_way) = (turned[each.storage] for each in each.inputs)
        sizes = [trace.operations[index].outputs[0].data.numel() for index in (one, other)]
        is_whole = [each.data.numel() for each in each.inputs] == sizes
        if one != other and way == -other_way and is_whole and axis in (-1, dims - 1):
            yield each.index, [one, other]


def _direction(operation: Operation, trace: Trace) -> int:
    """1 where it joins states, those of the first tokens first; -1 of states from the end, whose last one comes first.

    0 of anything else.
    """
    states = operation.inputs
    if len(states) < FEWEST_STEPS or len({each.shape for each in states}) > 1 or states[0].data.ndim < 2:
        return 0
    if len({each.storage for each in states}) < len(states):
        return 0
    ways = ((1, states), (-1, states[::-1]))
    return next((way for way, each in ways if _follow(each, operation, trace)), 0)


def _follow(states: Sequence[TensorRecord], operation: Operation, trace: Trace) -> bool:
    """Whether each state is made of the one before it, by a matrix, and none by what attends."""
    made = trace.made_of([states[0].storage])
    between = [each for each in trace.operations[: operation.index] if {one.storage for one in each.inputs} & made]
    by_a_matrix = any(each.name in MATRICES and any(one.learned for one in each.inputs) for each in between)
    if not by_a_matrix or any(each.name in SOFTMAXES for each in between):
        return False  # sums that run on, or what attends in every step
    return all(later.storage in trace.made_of([earlier.storage]) for earlier, later in pairwise(states))
