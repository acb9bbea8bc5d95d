"""Learned tables of distances in which a negative index, counted from the end, meets a positive one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.properties.scores.learned_tables import run_of_tokens
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["wrapped_table_findings"]

MOST_TOKENS = 320
_IN_A_CIRCLE = re.compile(r"circular|cyclic|period|wrap|\bring\b|torus|toroid|modul(?:o|us)", re.I)
"""In code whose places follow one another in a circle: one step back is as many ahead as there are others."""


def wrapped_table_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Two distances, one ahead and one back, that read one entry: the shift that makes all of them positive is missing.

    Of a table with an entry for each distance a negative index is right: the last entries are those of the other side.

    Args:
        invocation: the call.
        evidence: of an attention.
    """
    tokens = evidence.num_tokens
    if tokens < 2 or _IN_A_CIRCLE.search(evidence.code):
        return
    seen = evidence.base.dense(evidence.base.weight)[0, 0] > ZERO_WEIGHT
    if seen.shape != (tokens, tokens):
        return
    for entries, index, line in _signed(evidence.base.instance.run.trace, tokens):
        both = _wrapped(index[seen], entries)
        if both is None and bool(seen.all()) and bool((index < 0).any()) and tokens <= entries < MOST_TOKENS:
            run = run_of_tokens(invocation, entries + 1)
            longer = [] if run is None else [each for count, each, _ in _signed(run, entries + 1) if count == entries]
            both = _wrapped(longer[0], entries) if len(longer) == 1 else None
        if both is not None:
            message = (
                f"a table of {entries} entries is read at {both[0]} and at {both[1]}, which is the same entry, counted "
                "from the end: a key ahead and one back share what is learned of their distance"
            )
            yield Finding("violation", "entry-of-each-offset", "positions", message, line)
            return


def _signed(trace: Trace, tokens: int) -> Iterator[tuple[int, Tensor, CodeLocation | None]]:
    """Of each learned table that all pairs of tokens index: its entries, the index of each pair, and the line."""
    for operation in trace:
        if operation.name != "index" or not operation.inputs[0].learned or len(operation.inputs) != 2:
            continue
        index = operation.inputs[1].data
        if index.dtype == torch.long and index.numel() == tokens**2:
            axis = next(at for at, each in enumerate(operation.args[1]) if each is not None)
            yield operation.inputs[0].shape[axis], index.reshape(tokens, tokens), operation.location


def _wrapped(index: Tensor, entries: int) -> tuple[int, int] | None:
    """A positive and a negative index of one entry; None where there are none."""
    read = torch.unique(index)
    negative = read[read < 0]
    shared = negative[torch.isin(negative + entries, read)]
    return (int(shared[-1]) + entries, int(shared[-1])) if len(shared) else None
