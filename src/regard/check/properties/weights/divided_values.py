"""Values, or what is read of them, that something is divided by: an output is no weighted sum of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.factors import numbers_by_tag
from regard.check.roles.instances import SOFTMAXES, AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation

__all__ = ["divided_output_findings", "divided_value"]

PROPERTY, STEP = "values-summed", "weighted sum"


def divided_value(run: TaggedRun) -> Finding | None:
    """That weights are divided by the numbers of tokens, or of projected ones; None where they are not.

    Args:
        run: in which no weighted sum was found.
    """
    scores = {each.operation.index for each in run.bilinear}
    weights = [
        each.outputs[0].storage
        for each in run.trace
        if each.name in SOFTMAXES and scores & run.owner_of(run.tags.inputs[each.index][0])
    ]
    made = run.trace.made_of(weights)
    for division, numbers in _divisions(run):
        above, below = division.inputs[:2]
        is_of_weights = above.storage in made and bool(run.owner_of(run.tags.inputs[division.index][0]) & scores)
        if is_of_weights and below.storage not in made and _are_whole(run, division, numbers, scores):
            message = "weights are divided by the values, not multiplied: the output is no weighted sum of them"
            return Finding("violation", PROPERTY, STEP, message, division.location)
    return None


def divided_output_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Something that is made of no attention, as a learned factor, and is divided by what an attention read.

    What is read and divided by its length, or by its last channel, stands above as well.
    """
    sums = {each.operation.index for instance in instances for each in instance.sums}
    made = run.trace.made_of(run.trace.operations[each].outputs[0].storage for each in sums)
    before = {each.index for each in run.trace if each.outputs and each.outputs[0].storage not in made}
    for division, numbers in _divisions(run):
        above, below = division.inputs[:2]
        if below.storage in made and above.storage not in made and _are_whole(run, division, numbers, before):
            message = (
                "something is divided by what was read, number by number: the output is not linear in the values, and "
                "grows without bound where they are small"
            )
            yield Finding("violation", PROPERTY, STEP, message, division.location)
            return


def _divisions(run: TaggedRun) -> Iterator[tuple[Operation, Tensor]]:
    """Those of one tensor by another one, and the numbers of the run by their tags."""
    divisions = [each for each in run.trace if each.name == "div" and len(each.inputs) > 1]
    if divisions:
        numbers = numbers_by_tag(run, run.trace)
        yield from ((each, numbers) for each in divisions)


def _are_whole(run: TaggedRun, division: Operation, numbers: Tensor, others: Collection[int]) -> bool:
    """Whether each divisor is a number that a product made, or that was given, as it is, and none is of `others`."""
    record, tags = division.inputs[1], run.tags.inputs[division.index][1]
    if record.data.numel() < 2 or not record.data.is_floating_point() or bool((tags == 0).any()):
        return False
    return bool((numbers[tags] == record.data.double()).all()) and not run.owner_of(tags) & {*others}
