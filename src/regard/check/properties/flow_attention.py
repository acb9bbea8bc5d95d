"""Linear attention in which tokens compete for flow, by weights and gates made of normalized sums (Flowformer)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.influence import Influence
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.roles.owners import SEVERAL, owners
from regard.check.trace.operation import Operation

__all__ = ["flow_attention"]

GATES = frozenset({"sigmoid", *SOFTMAXES})


def flow_attention(
    instances: Sequence[AttentionInstance],
    influence: Influence,
    streams: Sequence[str],
    is_over_tokens: Callable[[AttentionInstance, dict[int, Tensor]], bool],
) -> Finding | None:
    """Sums over tokens whose values are times a softmax of what their keys send, one number a key; None of others.

    Wu et al. 2022, "Flowformer: Linearizing Transformers with Conservation Flows", section 3.2: what a source sends and
    what a sink takes are products with sums over the other tokens, each of which is divided by its own product. They
    are read by a softmax over the sources and by a sigmoid alone.

    Args:
        instances: the attentions of a call: what looks like some others is how these products are made.
        influence: of the tokens of the call.
        streams: the names of its sequences.
        is_over_tokens: whether the products of one are of one token each, with the results of some operations held.
    """
    if any(each.softmaxes for each in instances):
        return None
    *flows, last = sorted(instances, key=lambda each: each.sums[-1].operation.index)
    trace, sources = last.run.trace, {each.left_terms.shape[-1] for each in last.scores}
    gates = [each for each in trace if each.name in GATES and _is_of_several(each, influence, streams)]
    competing = [each for each in gates if each.name in SOFTMAXES]
    if not competing or any({each.outputs[0].shape[int(each.args[1])]} != sources for each in competing):
        return None
    weighted = trace.made_of(each.outputs[0].storage for each in competing)
    if not all(any(trace.taken(place).storage in weighted for place in each.places) for each in last.scores):
        return None
    sums = {each.operation.index for one in flows for each in one.sums}
    made = trace.computed_of(sums, {each.index for each in gates})
    ends = {each.storage for each in trace.outputs}
    if any(each.storage in ends for index in made for each in trace.operations[index].outputs):
        return None  # what they sum is read by something else as well
    if not is_over_tokens(last, {each.index: each.outputs[0].data for each in gates}):
        return None
    message = (
        "keys are multiplied by values that compete by a softmax of what they send, before a query asks: no scores of "
        "two tokens (flow attention)"
    )
    return Finding("design", "flow-attention", "scores", message, last.scores_location)


def _is_of_several(operation: Operation, influence: Influence, streams: Sequence[str]) -> bool:
    """Whether each number that an operation takes depends on several tokens."""
    depends = influence.of(operation.index, 0)
    return bool((owners(depends.flatten(1), influence, streams).token == SEVERAL).all())
