"""Pre-norm blocks in which some of queries, keys and values are made of what the norm was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Finding
from regard.check.properties.modules.residuals import LAYER_NORMS
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.roles.local import projections_of
from regard.check.trace.operation import Operation

__all__ = ["passed_norm_findings"]


def passed_norm_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Projections of one attention of which one reads what a norm returned, and another what the norm was given.

    Args:
        run: the run.
        instances: its attentions.
    """
    trace = run.trace
    norms, copied = [each for each in trace if each.name in LAYER_NORMS], trace.originals()
    for instance in instances:
        several = [each for each in projections_of(instance) if each.index < instance.scores[0].operation.index]
        read = [{copied.get(one.storage, one.storage) for one in each.inputs} for each in several]
        for norm in norms:
            given, returned = norm.inputs[0].storage, norm.outputs[0].storage
            behind = [one for one, storages in zip(several, read, strict=True) if returned in storages]
            beside = [one for one, storages in zip(several, read, strict=True) if given in storages]
            if behind and beside and _are_apart(behind, beside) and not _is_carried_on(instance, norm, behind):
                message = (
                    f"{len(behind)} of queries, keys and values are made of what a norm returned, and {len(beside)} of "
                    "what it was given"
                )
                yield Finding("violation", "norm-used", "projections", message, beside[0].location)
                return


def _is_carried_on(instance: AttentionInstance, norm: Operation, behind: Sequence[Operation]) -> bool:
    """Whether the output is added to what the norm returned, of which the queries alone are made, as in SASRec."""
    given, returned = norm.inputs[0].storage, norm.outputs[0].storage
    later = instance.run.trace.operations[instance.sums[-1].operation.index :]
    added = {one.storage for each in later if each.is_addition for one in each.inputs}
    return len(behind) == 1 and returned in added and given not in added


def _are_apart(some: Sequence[Operation], others: Sequence[Operation]) -> bool:
    return not {each.index for each in some} & {each.index for each in others}
