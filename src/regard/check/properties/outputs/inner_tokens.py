"""The output where the tokens of an attention are rows of its projections: what comes before them mixes the input's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.heads import MovedSums, positions_of
from regard.check.roles.factors import factors_of
from regard.check.roles.influence import Influence, stream_sizes
from regard.check.roles.owners import SEVERAL
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Trace

__all__ = ["inner_output_findings", "tokens_of_queries"]

MOST_MOVED = 12
"""Queries of one head whose weighted sums are moved one after the other: of more, some all over the sequence."""
CLEAR = 3.0
"""How many times as much as by any other token a query has to be changed by one to be that token's."""


def inner_output_findings(
    invocation: Invocation, evidence: Evidence, influence: Influence, frozen: Mapping[int, Tensor]
) -> Iterator[Finding]:
    """Violations shown by moving the weighted sums of one query, with all others held.

    A norm over the places of a picture stands before most attentions of these. Each query is of all tokens then, most
    of all of one. What it read has to change the output at one place alone; a norm, a convolution or another layer
    that follows changes more, and nothing is found there.

    Args:
        invocation: the call, of one sequence.
        evidence: of the attention, whose tokens are rows of its projections.
        influence: of the tokens of the input.
        frozen: the weights and weighted sums of all attentions, by the index of their operation.
    """
    table, stream = evidence.base, invocation.streams[0]
    shape = invocation.arguments[stream.argument].shape
    samples, tokens, _ = stream_sizes(invocation, stream)
    others = {size for axis, size in enumerate(shape) if axis not in stream.token_axes}
    if len(invocation.streams) > 1 or tokens < 2 or any(shape[axis] in others for axis in stream.token_axes):
        return
    if not _are_tokens(table, samples, tokens) or not table.instance.run.trace.outputs:
        return
    shown = MovedSums(invocation, evidence, stream, shape, frozen)
    line, own = table.instance.sums_location, tokens_of_queries(table, influence, tokens)
    moved = set[int]()
    for token, head in [
        *((each, 0) for each in range(0, tokens, math.ceil(tokens / MOST_MOVED))),
        *((tokens // 2, each) for each in range(table.num_heads)),
    ]:
        rows = shown.rows(samples - 1, [token], head)
        changes = shown.changes(shown.given(rows)) if bool(rows.any()) else None
        changed = positions_of(changes[0], stream, shape) if changes else None
        if not changes or changed is None:
            return
        places = sorted(each for sample, each, _ in changed if sample == samples - 1)
        if not places:
            continue
        if len(places) < len({each[:2] for each in changed}):
            return
        if len(places) > 1 and int(changes[0].sum()) * samples * tokens <= changes[0].numel():
            message = (
                f"what a query read changes numbers of {len(places)} tokens of the output, and not all of one token's: "
                "tokens and channels are mixed"
            )
            yield Finding("violation", "output-of-the-token", "heads joined", message, line)
            return
        if len(places) > 1:
            return
        if own is not None and places[0] != own[token]:
            read, shown_at = (_place(each, stream, shape) for each in (own[token], places[0]))
            message = f"what the query at {read} read is returned at {shown_at}"
            yield Finding("violation", "output-of-the-token", "heads joined", message, line)
            return
        moved.add(head)
    for head in {*range(table.num_heads)} - moved:
        if not shown.reaches(shown.given(shown.of_head(head, tokens))):
            message = f"head {head} does not reach the output"
            yield Finding("violation", "heads-in-output", "heads joined", message, line)
            return
    if len(moved) == table.num_heads:
        which = f"each of {table.num_heads} heads" if table.num_heads > 1 else "one head"
        message = f"{which}: what a query read reaches its token's output"
        yield Finding("holds", "output-of-the-token", "heads joined", message, line)


def _are_tokens(table: AttentionTable, samples: int, tokens: int) -> bool:
    """Whether there are as many queries as tokens, of one projection, and as many samples."""
    query = table.query
    if not table.whole or table.of_no_token or bool((query.sample == SEVERAL).any()):
        return False
    streams = torch.unique(query.stream)
    counts = int(query.sample.max().clamp(min=0)) + 1, int(query.token.max()) + 1
    return len(streams) == 1 and int(streams[0]) >= 0 and counts == (samples, tokens)


def tokens_of_queries(table: AttentionTable, influence: Influence, tokens: int) -> list[int] | None:
    """For each query the token of the input that changes it most; None where it is not clear which."""
    rows = influence.sources("token")
    if len(rows) != tokens or not {*range(tokens)} <= {*table.query.token.tolist()}:
        return None  # as where the last token alone asks
    instance, layout = table.instance, table.layout
    first = [int((table.query.token == each).nonzero()[0]) for each in range(tokens)]

    def queries(trace: Trace) -> Tensor:
        return factors_of(instance, layout.queries_left, trace)[layout.used][first]  # (tokens, width)

    base = queries(influence.base)
    moved = torch.stack([(queries(influence.runs[row][1]) - base).norm(dim=-1) for row in rows])  # (of input, queries)
    top = moved.topk(2, dim=0)
    found = [influence.runs[rows[each]][0].index for each in top.indices[0].tolist()]
    is_clear = bool((top.values[0] > CLEAR * top.values[1]).all()) and len(set(found)) == tokens
    return found if is_clear else None


def _place(token: int, stream: Stream, shape: torch.Size) -> str:
    """A token in words: along each axis that the tokens have."""
    places: list[int] = []
    for axis in reversed(stream.token_axes):
        token, place = divmod(token, shape[axis])
        places.insert(0, place)
    return f"token {places[0]}" if len(places) == 1 else f"place ({', '.join(map(str, places))})"
