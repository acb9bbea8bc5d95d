"""Weights of summaries whose inverse is found by products with themselves, as by Nystrom attention."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.trace.operation import Trace

__all__ = ["inverted_weights"]


def inverted_weights(instances: Sequence[AttentionInstance]) -> Finding | None:
    """That a square matrix of weights is multiplied by itself, and by numbers, alone; None where none is.

    Xiong et al. 2021, section 3.4: what stands between the two softmaxes is the pseudo-inverse of the weights of the
    landmarks among themselves. Its products are no scores of queries and keys.

    Args:
        instances: the attentions of a call, of which its products are taken for some.
    """
    run = instances[0].run
    softmaxes = [each.outputs[0] for each in run.trace if each.name in SOFTMAXES]
    if not any(each.shape[-2:] == (each.shape[-1],) * 2 for each in softmaxes if len(each.shape) > 1):
        return None
    alone = _of_weights_alone(run.trace)
    for instance in instances:
        for each in instance.scores:
            places = [run.trace.operations[index].inputs[number] for index, number in each.places]
            are_square = all(len(one.shape) > 1 and one.shape[-1] == one.shape[-2] for one in places)
            if are_square and len({alone.get(one.storage, -1 - place) for place, one in enumerate(places)}) == 1:
                message = (
                    "weights of summaries are multiplied by themselves, as their inverse is found so (Nystrom): no "
                    "scores of two tokens"
                )
                return Finding("design", "summarized-keys", "projections", message, each.operation.location)
    return None


def _of_weights_alone(trace: Trace) -> dict[int, int]:
    """By memory, the softmax that it was computed of, where no other one, no token and no parameter was beside it."""
    of_tokens = trace.made_of(each.storage for each in trace.arguments.values())
    found = dict[int, int]()
    for operation in trace:
        if operation.name in SOFTMAXES:
            found[operation.outputs[0].storage] = operation.index
            continue
        made_by = {found[each.storage] for each in operation.inputs if each.storage in found}
        others = [each for each in operation.inputs if each.storage not in found]
        if len(made_by) == 1 and not any(each.learned or each.storage in of_tokens for each in others):
            found.update(dict.fromkeys((each.storage for each in operation.outputs), *made_by))
    return found
