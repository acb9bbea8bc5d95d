"""Keys and values that a call returns beside its output, for the next call: they are no use that this call makes."""

from __future__ import annotations

from collections.abc import Sequence

from regard.check.roles.instances import AttentionInstance

__all__ = ["handed_out_by"]


def handed_out_by(instances: Sequence[AttentionInstance]) -> frozenset[int]:
    """The numbers of the outputs, after the first, that a projection made before the last weighted sum.

    What it made of scores, as new vectors of a graph's edges, and nothing attends with, are no keys or values.
    """
    if not instances:
        return frozenset()
    run = instances[0].run
    last = max(each.operation.index for instance in instances for each in instance.sums)
    scores = {each.operation.index for instance in instances for each in (*instance.scores, *instance.sums)}
    made_of_scores = run.trace.computed_of(scores, ())
    found = set[int]()
    for number, tags in enumerate(run.tags.returned):
        made = run.owner_of(tags)
        if number and made and max(made) < last and not made & scores:
            if made <= made_of_scores and not scores & run.trace.computed_of(made, ()):
                continue
            found.add(number)
    return frozenset(found)
