"""The attention of the Set Transformer: what a head reads is added to its projected query, before heads are joined."""

from __future__ import annotations

from regard.check.properties.finding import Finding
from regard.check.properties.scores.formula import SAME_NUMBER, ScoreFit
from regard.check.roles.instances import AttentionInstance

__all__ = ["scale_of_all_heads"]


def scale_of_all_heads(instance: AttentionInstance, fit: ScoreFit) -> Finding | None:
    """1/sqrt(width of all heads), beside weighted sums that are added to the projected queries; None of all others.

    Lee et al. 2019, "Set Transformer", section 2.1: the softmax takes scores over the root of the width of the whole
    vectors, and the residual connection carries the queries as they are projected (equation 6, and the code of it).

    Args:
        instance: the attention.
        fit: what its scores are.
    """
    width = round(fit.total**-2) if fit.total > 0 else 0
    if width <= fit.width or abs(fit.total * width**0.5 - 1) > SAME_NUMBER:
        return None
    run, sums = instance.run, {each.operation.index for each in instance.sums}
    factors = set[int]()
    for each in instance.scores:
        for index, number in each.places:
            factors |= run.owner_of(run.tags.inputs[index][number])
    whole = {index for index in factors if run.trace.operations[index].outputs[0].shape[-1] == width}
    for operation in run.trace.operations[min(sums, default=0) :]:
        if not operation.is_addition:
            continue
        read = [run.owner_of(tags) for tags in run.tags.inputs[operation.index]]
        if any(one and one <= sums and other and other <= whole for one, other in (read, read[::-1])):
            message = (
                f"1/sqrt({width}), the width of all heads together: what a head reads is added to its projected query, "
                "as in the Set Transformer"
            )
            return Finding("design", "scale-of-all-heads", "scale", message, instance.scores_location)
    return None
