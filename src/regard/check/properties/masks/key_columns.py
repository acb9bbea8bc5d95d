"""Which column of a mask each key stands in: masks of as many keys as are asked, or of those of one sequence alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.roles.influence import Source, changed, differs, record_invocation, selections, stream_sizes
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation

__all__ = ["KeyColumns", "columns_of_all", "columns_of_sequences", "shift_of"]


@dataclass(frozen=True, eq=False)
class KeyColumns:
    """The columns of a mask."""

    count: int
    orders: list[Tensor]
    """(scores): the column that a key stands in, the likeliest order first; -1 for a key that the mask is not of."""


def columns_of_all(table: AttentionTable) -> KeyColumns:
    """A column for each key.

    Keys may be made of two sequences, one behind the other, and the asking one may come last (Perceiver's resampler).
    """
    streams, token = table.key.stream, table.key.token
    count, last = int(token.max()) + 1, streams == streams.max()
    if bool(last.all()) or bool((streams[~last] != streams.min()).any()):
        return KeyColumns(count, [token])
    begin = token[last].min()
    return KeyColumns(count, [token, torch.where(last, token - begin, token + (token.max() + 1 - begin))])


def columns_of_sequences(invocation: Invocation, evidence: Evidence) -> Iterator[KeyColumns]:
    """For each sequence that some of the keys are of: a column for each of its tokens, and none for other keys.

    As where learned latents are keys beside what they read, and the code lets all see them.
    """
    table = evidence.base
    keys = int(table.key.token.max()) + 1
    trace = table.instance.run.trace
    for stream in invocation.streams:
        _, tokens, _ = stream_sizes(invocation, stream)
        if len(stream.token_axes) != 1 or not 1 < tokens < keys:
            continue
        column = torch.full((len(table.weight),), -1)
        for token in range(tokens):
            given = changed(invocation, Source(stream.argument, "token", token))
            run = record_invocation(invocation, given, frozen=selections(trace))
            if run.error or not run.same_operations(trace):
                break
            moved = differs(table.k, table.of_run(run).k).any(-1)
            if not bool(moved.any()) or bool((column[moved] >= 0).any()):
                break  # no key is of this token, or one of several
            column[moved] = token
        else:
            if int((column >= 0).sum()) < len(column):
                yield KeyColumns(tokens, [column])


def shift_of(table: AttentionTable, outcome: MaskOutcome, columns: KeyColumns) -> int | None:
    """By how many keys too far a mask hides, which its code has made longer; None where it hides other keys than that.

    Args:
        table: of the attention.
        outcome: of a mask that says the same of all queries.
        columns: its columns.
    """
    (column,), sample = columns.orders, table.query.sample.clamp(min=0)
    is_told = column >= 0
    blocks = torch.zeros(int(sample.max()) + 1, columns.count, dtype=torch.bool)
    blocks[sample[is_told], column[is_told]] = ~outcome.allowed[is_told]
    own = int((table.key.token - column)[is_told].min())
    for first in (0, int(table.key.token.max()) + 1 - columns.count):
        at = table.key.token - first
        hidden = (at >= 0) & (at < columns.count) & blocks[sample, at.clamp(0, columns.count - 1)]
        if first != own and torch.equal(outcome.blocked[outcome.judged], hidden[outcome.judged]):
            return first - own
    return None
