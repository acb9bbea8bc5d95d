"""A bias of positions that one attention computes and hands on: the others add that, and not its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.bias import added_to_scores

__all__ = ["handed_on_findings"]


def handed_on_findings(several: Sequence[Evidence]) -> Iterator[Finding]:
    """A line that adds positions to the scores of one attention, and the weights of another attention to its own.

    Scores of the layer before, added to those of the next (He et al. 2021, "RealFormer"), are no weights.

    Args:
        several: the evidence of the attentions of a call.
    """
    if len(several) < 2:
        return
    trace = several[0].base.instance.run.trace
    weights = {
        record.storage: each.base.instance.module
        for each in several
        for softmax in each.base.instance.softmaxes
        for record in softmax.outputs
    }
    names = {stream for each in several for stream in each.roles}
    of_tokens = trace.made_of(trace.arguments[each].storage for each in names if each in trace.arguments)
    added = [(each.base.instance, record, line) for each in several for _, record, line in added_to_scores(each)]
    of_positions = {line for _, record, line in added if line is not None and record.storage not in of_tokens}
    for instance, record, line in added:
        if line in of_positions and record.storage in weights:
            message = (
                f"the weights of {weights[record.storage] or 'another attention'} are added to the scores, where "
                "another attention adds a bias of positions"
            )
            yield Finding("violation", "bias-handed-on", "bias", message, line, instance.module)
            return
