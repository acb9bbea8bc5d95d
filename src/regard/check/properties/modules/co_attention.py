"""Two sequences of which each shall attend to the other one, and one that attends to itself alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.documentation import name_and_documentation, promises_co_attention
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import is_changed, record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["co_attention_findings"]


def co_attention_findings(invocation: Invocation, base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """What is returned for one of two sequences hangs on that sequence alone, whose queries meet its own keys.

    Where self-attention stands beside co-attention, what is returned hangs on both. A sequence that is returned as it
    was handed over is none that attends.

    Args:
        invocation: a call of two sequences.
        base: its run.
        several: the evidence of its attentions.
    """
    names = [each.argument for each in invocation.streams]
    if len(names) != 2 or not promises_co_attention(name_and_documentation(invocation.target)):
        return
    fresh = with_fresh_tokens(invocation)
    changed = [_changed(invocation, base, {**invocation.arguments, name: fresh[name]}) for name in names]
    for (own, of_own), (other, of_other) in zip(
        zip(names, changed, strict=True), zip(names[::-1], changed[::-1], strict=True), strict=True
    ):
        given = invocation.arguments[own]
        alone = next((each for each in sorted(of_own - of_other) if not _is(base.outputs[each].data, given)), None)
        line = next((each.base.instance for each in several if _asks_itself(each, own)), None)
        if alone is None or line is None:
            continue
        message = (
            f"by its documentation each of {names[0]} and {names[1]} attends to the other one, and output {alone} "
            f"depends on {own} alone: the queries of {own} meet keys of {own}, and nothing reads {other} for it"
        )
        yield Finding("violation", "keys-of-the-other", "projections", message, line.scores_location, line.module)
        return


def _changed(invocation: Invocation, base: Trace, arguments: dict[str, Tensor]) -> set[int]:
    """The outputs that other arguments change; none where another run cannot be compared."""
    run = record_invocation(invocation, arguments)
    if run.error or len(run.outputs) != len(base.outputs):
        return set()
    both = enumerate(zip(base.outputs, run.outputs, strict=True))
    return {number for number, (one, two) in both if is_changed(one.data, two.data)}


def _is(output: Tensor, given: Tensor) -> bool:
    return output.shape == given.shape and torch.equal(output, given)


def _asks_itself(evidence: Evidence, name: str) -> bool:
    """Whether queries and keys of an attention are all of one sequence."""
    table = evidence.base
    if table.streams != tuple(evidence.roles) or name not in table.streams:
        return False
    place = table.streams.index(name)
    return bool((table.query.stream == place).all()) and bool((table.key.stream == place).all())
