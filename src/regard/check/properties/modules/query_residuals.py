"""Attention to another sequence, whose output is added to that one, and not to what its queries are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from regard.check.properties.analysis import Analysis
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.modules.added_to_itself import added_to
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of

__all__ = ["optional_context_findings", "query_residual_findings"]

_ASKS = re.compile(r"(?:\w+_)?(?:q|quer(?:y|ies)|tgt|trg)(?:_\w+)?", re.I)
"""The name of a sequence that is the one which goes on: else a guide may ask what is to be changed."""
_MESSAGE = "what this attention read for {asking} is added to {other}, which its keys or values are made of"


def query_residual_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """An attention whose output is added to the sequence of its keys or values, as that was handed over.

    The tokens of both stand at the same places only by accident, and what asked is lost but for the weights. Where that
    is joined as well, as where two sequences become one, nothing is lost.

    Args:
        invocation: a call of several sequences.
        several: the evidence of its attentions.
    """
    names = [each.argument for each in invocation.streams]
    for each in several if len(names) > 1 else ():
        table, instance = each.base, each.base.instance
        numbers = {*table.query.stream.tolist()}
        if table.streams != tuple(each.roles) or len(numbers) != 1 or min(numbers) < 0:
            continue
        asking, trace = str(table.streams[numbers.pop()]), instance.run.trace
        read = {*table.key.stream.tolist(), *table.values.stream[table.values.score >= 0].tolist()}
        other = added_to(trace, instance, names)
        if other not in {table.streams[one] for one in read if one >= 0} - {asking}:
            continue
        if asking not in trace.arguments or not _ASKS.fullmatch(asking):
            continue
        attended = trace.made_of({one.operation.outputs[0].storage for one in instance.sums})
        passed = trace.made_of([trace.arguments[asking].storage]) - attended
        later = ({one.storage for one in operation.inputs} for operation in trace)
        if not any(storages & passed and storages & attended for storages in later):
            message = _MESSAGE.format(asking=asking, other=other)
            yield Finding(
                "violation", "residual-of-the-input", "block", message, instance.sums_location, instance.module
            )
            return


def optional_context_findings(analysis: Analysis, judge: Callable[[Invocation], Analysis]) -> Iterator[Finding]:
    """The same of a sequence that is x itself where it is not handed over.

    Args:
        analysis: of a call without violations, of one sequence.
        judge: what analyzes another call.
    """
    invocation = analysis.invocation
    if len(invocation.streams) != 1 or not isinstance(invocation.target, nn.Module):
        return
    (stream,) = invocation.streams
    x = invocation.arguments[stream.argument]
    other = _in_its_place(invocation.target, stream.argument) if x.is_floating_point() else None
    if other is None or invocation.arguments.get(other) is not None:
        return
    context = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype)
    streams = [*invocation.streams, replace(stream, argument=other, role="context")]
    call = replace(invocation, arguments={**invocation.arguments, other: context}, streams=streams)
    if not record_invocation(call).error:
        yield from (each for each in judge(call).violations if each.property == "residual-of-the-input")


def _in_its_place(target: nn.Module, name: str) -> str | None:
    """The argument that is another one where it is None; None where there is no such one."""
    source = source_of(type(target).forward)
    for each in inspect.signature(target.forward).parameters.values():
        one, other = re.escape(each.name), re.escape(name)
        stands = rf"\b{one} = (?:{one} if {one} is not None else {other}|{other} if {one} is None else {one}"
        stands += rf"|default\({one}, {other}\))\s*$|\bif {one} is None:\s+{one} = {other}\s*$"
        if each.default is None and re.search(stands, source, re.M):
            return each.name
    return None
