"""Several sequences, each of which attends to itself: what it reads there is added to itself, and not to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.residuals import is_joined
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["added_to", "added_to_itself_findings"]


def added_to_itself_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A sequence that attends nowhere, to which is added what another one reads in itself for a second time.

    There are as many attentions of one class as sequences, and what each returns is added to a sequence of its own as
    it was handed over: that of the others to the sequence that asks.

    Args:
        invocation: a call of several sequences.
        several: the evidence of its attentions.
    """
    names = [each.argument for each in invocation.streams]
    if len(names) < 2 or len(several) != len(names) or not isinstance(invocation.target, nn.Module):
        return
    if len({type(invocation.target.get_submodule(each.base.instance.module)) for each in several}) > 1:
        return
    asking = [_asking(each) for each in several]
    trace = several[0].base.instance.run.trace
    added = [added_to(trace, each.base.instance, names) for each in several]
    if None in asking or {*added} != {*names}:
        return
    others = [number for number, (one, other) in enumerate(zip(asking, added, strict=True)) if one != other]
    if len(others) != 1:
        return
    (number,) = others
    instance = several[number].base.instance
    message = (
        f"{asking[number]} attends to itself once more, and what it reads is added to {added[number]}, which attends "
        "nowhere: of the other sequences each is added what it reads in itself"
    )
    yield Finding("violation", "added-to-itself", "projections", message, instance.scores_location, instance.module)


def _asking(evidence: Evidence) -> str | None:
    """The sequence that all queries, keys and values of an attention are made of; None where there are several."""
    table = evidence.base
    values = table.values.stream[table.values.score >= 0]
    found = {*table.query.stream.tolist(), *table.key.stream.tolist(), *values.tolist()}
    if table.streams != tuple(evidence.roles) or len(found) != 1 or min(found) < 0:
        return None
    name: str = table.streams[found.pop()]
    return name


def added_to(trace: Trace, instance: AttentionInstance, names: Sequence[str]) -> str | None:
    """The sequence to which is added, as it was handed over, what an attention returns; None where it is none."""
    given = {trace.arguments[each].storage: each for each in names if each in trace.arguments}
    alone = {each.operation.outputs[0].storage for each in instance.sums}
    for operation in trace.operations[instance.sums[-1].operation.index + 1 :]:
        if is_joined(operation, alone):
            return next((given[each.storage] for each in operation.inputs if each.storage in given), None)
        if any(each.storage in alone for each in operation.inputs):
            alone.update(each.storage for each in (*operation.outputs, *operation.written))
    return None
