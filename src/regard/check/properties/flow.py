"""Linear attention in which tokens compete for flow, by weights and gates made of normalized sums (Flowformer)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES, AttentionInstance

__all__ = ["flow_attention"]

GATES = frozenset({"sigmoid", *SOFTMAXES})


def flow_attention(
    instances: Sequence[AttentionInstance], is_over_tokens: Callable[[AttentionInstance, dict[int, Tensor]], bool]
) -> Finding | None:
    """Sums over tokens whose values are times a softmax of what their keys send, and that a sigmoid gates; else None.

    Wu et al. 2022, "Flowformer: Linearizing Transformers with Conservation Flows", section 3.2: what a source sends and
    what a sink takes are products with sums over the other tokens, each of which is divided by its own product. They
    are read by a softmax over the sources and by a sigmoid alone.

    Args:
        instances: the attentions of a call: what looks like some others is how these products are made.
        is_over_tokens: whether the products of one are of one token each, with the results of some operations held.
    """
    if len(instances) < 2 or any(each.softmaxes for each in instances):
        return None
    *flows, last = sorted(instances, key=lambda each: each.sums[-1].operation.index)
    run = last.run
    sums = [each.operation for one in flows for each in one.sums]
    of_sums = run.trace.made_of(record.storage for each in sums for record in each.outputs)
    gates = [each for each in run.trace if each.name in GATES and each.inputs[0].storage in of_sums]
    competing = [each for each in gates if each.name in SOFTMAXES]
    sources = {each.left_terms.shape[-1] for each in last.scores}
    if not competing or any({each.outputs[0].shape[int(each.args[1])]} != sources for each in competing):
        return None
    made = run.trace.computed_of((each.index for each in sums), {each.index for each in gates})
    ends = {each.storage for each in run.trace.outputs}
    if any(each.storage in ends for index in made for each in run.trace.operations[index].outputs):
        return None  # what they sum is read by something else as well
    if not is_over_tokens(last, {each.index: each.outputs[0].data for each in gates}):
        return None
    message = (
        "keys are multiplied by values that compete by a softmax of what they send, before a query asks: no scores of "
        "two tokens (flow attention)"
    )
    return Finding("design", "flow-attention", "scores", message, last.scores_location)
