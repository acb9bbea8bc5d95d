"""Linear attention in which a query is divided by a number of its own key alone, not by a sum over the keys."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.properties.weights.normalizers import BOUNDS, COPIES_OF_DENOMINATORS, values_places
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.owners import are_of_own_tokens
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["own_denominator_findings"]

EXPONENTIALS = frozenset({"exp", "exp_", "sigmoid", "tanh", "softplus"})
"""What makes gates of numbers of both signs."""


def own_denominator_findings(invocation: Invocation, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """Divisions of what queries read by numbers that are made of the query and of the key of the same token.

    The sum of the weights of a query is q . (sum of k over the tokens). Where the keys are summed over their channels
    instead, each denominator is of one token: q and k of it, which have the shapes of the right ones. A gate is no
    division, and a denominator that is bounded is meant so.

    Args:
        invocation: the call.
        instances: in which keys are multiplied by values before a query asks.
    """
    for instance in instances:
        trace, values = instance.run.trace, values_places(instance)
        keys = [place for each in instance.scores for place in each.places if place not in values]
        queries = [instance.values_place(each) for each in instance.sums]
        if not values or not keys:
            continue
        of_keys, of_queries = (
            trace.made_of({_source(trace, trace.taken(each)) for each in places}) for places in (keys, queries)
        )
        read = trace.made_of({each.operation.outputs[0].storage for each in instance.scores})
        own = (of_keys & of_queries) - read
        # A gate that is written by hand divides by 1 + exp(-x).
        own -= trace.made_of({one.outputs[0].storage for one in trace if one.name in EXPONENTIALS} & own)
        if any(one.name.rstrip("_") in BOUNDS and one.outputs and one.outputs[0].storage in own for one in trace):
            continue
        answers = trace.made_of({each.operation.outputs[0].storage for each in instance.sums})
        for division, denominator in _divisions(trace, answers, own):
            if are_of_own_tokens(invocation, trace, denominator):
                message = (
                    "a query is divided by a number that is made of its own token's key alone, not by its product "
                    "with the sum of the keys over the tokens: its weights sum to another number than 1"
                )
                yield Finding("violation", "weights-sum-to-one", "weights", message, division.location)
                return


def _source(trace: Trace, record: TensorRecord) -> int:
    """Where the numbers lie of which those that are taken are a copy."""
    storage = record.storage
    for operation in reversed(trace.operations):
        is_copy = operation.name.rstrip("_") in COPIES_OF_DENOMINATORS - {"reciprocal"} and operation.inputs
        if is_copy and operation.outputs and operation.outputs[0].storage == storage:
            storage = operation.inputs[0].storage
    return storage


def _divisions(trace: Trace, answers: set[int], own: set[int]) -> Iterator[tuple[Operation, tuple[int, int]]]:
    """Where answers are divided by what lies in some memory, or multiplied by its inverse; and where that is taken."""
    inverses: dict[int, tuple[int, int]] = {}
    for operation in trace:
        name, several = operation.name.rstrip("_"), [each.storage for each in operation.inputs]
        if not operation.outputs:
            continue
        made = operation.outputs[0].storage
        if name == "reciprocal" and several[0] in own:
            inverses[made] = (operation.index, 0)
        elif name == "div" and len(several) == 2 and several[1] in own and several[0] in answers:
            yield operation, (operation.index, 1)
        elif name == "mul" and len(several) == 2:
            for one, other in (several, several[::-1]):
                if one in answers and other in inverses:
                    yield operation, inverses[other]
        elif name in COPIES_OF_DENOMINATORS | {"mul"} and several and several[0] in inverses:
            inverses[made] = inverses[several[0]]
