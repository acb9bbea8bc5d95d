"""Two sequences of ids whose padding has an id of its own in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.token_ids import PADDED, padded
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Trace

__all__ = ["paddings_of_texts_findings"]


def paddings_of_texts_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Keys that an attention hides where their id is the other sequence's padding, and shows where it is their own.

    Args:
        invocation: a call of a model that tells an id of padding for each of two sequences.
        several: of each attention in it.
    """
    ids = {each.argument: invocation.paddings[each.argument] for each in invocation.streams}
    if len(ids) != 2 or len({*ids.values()}) != 2:
        return
    for number, stream in enumerate(invocation.streams):
        (other,) = (each for each in ids if each != stream.argument)
        runs = [_padded_with(invocation, stream, ids[each]) for each in (stream.argument, other)]
        first = invocation.tokens_of(stream) - PADDED
        for evidence in several:
            own, others = (_is_hidden(evidence, number, first, each) for each in runs)
            if own is False and others:
                message = (
                    f"where {stream.argument} is {ids[stream.argument]}, its padding, it is attended to; where it is "
                    f"{ids[other]}, the padding of {other}, it is hidden"
                )
                instance = evidence.base.instance
                location, module = instance.scores_location, instance.module
                yield Finding("violation", "padding-by-ids", "mask", message, location, module)
                return


def _padded_with(invocation: Invocation, stream: Stream, padding: int) -> Trace | None:
    """The run in which the last tokens of a sequence have an id; None where it is too short, or raises."""
    given = padded(invocation, stream, padding)
    run = None if given is None else record_invocation(invocation, given)
    return None if run is None or run.error else run


def _is_hidden(evidence: Evidence, number: int, first: int, run: Trace | None) -> bool | None:
    """Whether nothing is read of the last tokens of a sequence in a run; None if some is, or none was in the call."""
    base = evidence.base
    if run is None or not run.same_operations(base.instance.run.trace):
        return None
    keys = (base.key.stream == number) & (base.key.sample == 0) & (base.key.token >= first)
    seen = base.of_run(run).weight[keys & (base.weight > ZERO_WEIGHT)] > ZERO_WEIGHT
    is_one_of_both = bool(seen.numel()) and bool(seen.all()) == bool(seen.any())
    return not bool(seen.any()) if is_one_of_both else None
