"""Outputs of sequences that ask together (joint attention): each token's result returns with its own sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.heads import MovedSums, positions_of
from regard.check.target import Invocation, Stream

__all__ = ["joint_output_findings"]


@dataclass(frozen=True)
class _Sequence:
    """One of the sequences whose tokens ask."""

    stream: Stream
    shape: torch.Size
    start: int
    """The number of its first token among all that ask."""
    output: int | None
    """Which output has its samples and tokens; None where none does."""


def joint_output_findings(
    invocation: Invocation, evidence: Evidence, frozen: Mapping[int, Tensor]
) -> Iterator[Finding]:
    """Violations shown by moving the weighted sums of one query, with all others held.

    Nothing is found where sizes do not tell which output is of which sequence, as where all are returned joined.

    Args:
        invocation: the call.
        evidence: of an attention whose queries are of several sequences.
        frozen: the weights and weighted sums of all attentions, by the index of their operation.
    """
    table = evidence.base
    sequences = _sequences(invocation, evidence)
    samples = int(table.query.sample.max().clamp(min=0)) + 1
    line, moved = table.instance.sums_location, set[int]()
    for own in sequences:
        count = int(torch.tensor([own.shape[axis] for axis in own.stream.token_axes]).prod())
        shown = MovedSums(invocation, evidence, own.stream, own.shape, frozen)
        middle = [(samples - 1, count // 2, head) for head in range(table.num_heads)]
        for sample, token, head in (*middle, (0, count - 1, 0), (samples - 1, 0, table.num_heads - 1)):
            rows = shown.rows(sample, [own.start + token], head)
            changes = shown.changes(shown.given(rows)) if bool(rows.any()) else None
            if changes is None:
                continue
            changed = {
                (other.output, *place[:2])
                for other in sequences
                if other.output is not None
                for place in positions_of(changes[other.output], other.stream, other.shape) or ()
            }
            if not changed:
                continue
            moved.add(head)
            if (wrong := sorted(changed - {(own.output, sample, token)})) or own.output is None:
                number, in_sample, place = wrong[0]
                other = next(each.stream.argument for each in sequences if each.output == number)
                message = (
                    f"what token {token} of {own.stream.argument}, sample {sample}, attended to changes the output of "
                    f"token {place} of {other}, sample {in_sample}"
                )
                yield Finding("violation", "output-of-the-token", "heads joined", message, line)
                return
    tokens = int(table.query.token.max()) + 1
    for head in set(range(table.num_heads)) - moved if sequences else ():
        if not shown.reaches(shown.given(shown.of_head(head, tokens))):
            yield Finding(
                "violation", "heads-in-output", "heads joined", f"head {head} does not reach the output", line
            )
            return
    if len(moved) == table.num_heads:
        which = f"each of {table.num_heads} heads" if table.num_heads > 1 else "one head"
        message = f"{which}: what a query read reaches its token's output, of its own sequence"
        yield Finding("holds", "output-of-the-token", "heads joined", message, line)


def _sequences(invocation: Invocation, evidence: Evidence) -> list[_Sequence]:
    """The sequences whose tokens ask, in order; none where a sequence or an output cannot be told."""
    table, found = evidence.base, list[_Sequence]()
    outputs = table.instance.run.trace.outputs
    for number in sorted(set(table.query.stream.tolist())):
        if number < 0:
            return []  # of several at once, or of none
        stream = invocation.streams[number]
        shape, tokens = invocation.arguments[stream.argument].shape, table.query.token[table.query.stream == number]
        kept = (*(() if stream.batch_axis is None else (stream.batch_axis,)), *stream.token_axes)
        mine = [
            at
            for at, each in enumerate(outputs)
            if len(each.shape) == len(shape) and all(each.shape[axis] == shape[axis] for axis in kept)
        ]
        whole = int(torch.tensor([shape[axis] for axis in stream.token_axes]).prod())
        if len(mine) > 1 or len(torch.unique(tokens)) != whole:
            return []
        found.append(_Sequence(stream, shape, int(tokens.min()), mine[0] if mine else None))
    told = [each.output for each in found if each.output is not None]
    return found if len(set(told)) == len(told) else []
