"""Sequences in one row: boundaries, or lengths, say where each begins, and none sees another's tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.influence import depends
from regard.check.target.running import Stream

__all__ = ["packed_sequence_findings"]


def packed_sequence_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Which tokens move which outputs where the boundaries say that there are two sequences.

    Seen from the outputs: code may compute each sequence by itself, so that its steps are others for two of them.

    Args:
        invocation: a call with boundaries of one sequence.
        evidence: of its attention.
    """
    names = invocation.boundaries
    stream = next((each for role in ("v", "context", "x") for each in invocation.streams if each.role == role), None)
    if not names or stream is None:
        return
    listed, line = " and ".join(names), evidence.base.instance.scores_location
    tokens = invocation.tokens_of(stream)
    cut = tokens // 2
    if cut < 1:
        return
    of_lengths = invocation.arguments[names[0]].numel() == 1
    numbers = [cut, tokens - cut] if of_lengths else [0, cut, tokens]
    two = {name: torch.tensor(numbers) for name in names}
    try:
        free = _reached(invocation, stream, tokens, {})
        reached = _reached(invocation, stream, tokens, two)
    except (Failed, RuntimeError) as error:
        yield Finding("open", "mask-open", "mask", f"{listed}: not exercised with two sequences: {error}", line)
        return
    if free is None or reached is None:
        yield Finding("open", "mask-open", "mask", f"{listed}: not exercised, the outputs have other axes", line)
        return
    second = torch.arange(tokens) >= cut
    same = second[:, None] == second[None, :]
    leaks, lost = reached & ~same, free & same & ~reached
    for wrong, says in ((leaks, "of the other one"), (lost, "of its own no longer")):
        if bool(wrong.any()):
            query, key = (int(each) for each in wrong.nonzero()[0])
            message = (
                f"with {listed} = {numbers}, two sequences, query {query} reads token {key} {says} "
                f"({int(wrong.sum())} pairs of tokens)"
            )
            yield Finding("violation", "sequences-apart", "mask", message, line)
            return
    yield Finding("holds", "mask-form", "mask", f"{listed} keeps the sequences of a row apart", line)


def _reached(invocation: Invocation, stream: Stream, tokens: int, given: dict[str, Tensor]) -> Tensor | None:
    """(queries, keys): whether a key's token moves the output of a query's; None where an output has other axes."""
    found = []
    for token in range(tokens):
        arguments = {**invocation.arguments, **given}
        moved = depends(invocation, stream.argument, stream.token_axes[0], token, arguments)
        if not moved or moved[0].ndim <= stream.token_axes[0] or moved[0].shape[stream.token_axes[0]] != tokens:
            return None
        found.append(moved[0].movedim(stream.token_axes[0], 0).reshape(tokens, -1).any(-1))
    return torch.stack(found, -1)
