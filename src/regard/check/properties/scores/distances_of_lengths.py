"""Learned vectors of distances with another number of tokens: a distance keeps its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.other_lengths import with_tokens
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["distance_of_length"]

SAME = 1e-8
"""Of the largest score."""
DIGITS = 9
"""To which numbers of vectors are compared."""
SHARED = 0.5
"""Of the numbers of the vectors of a length: with fewer in those of another, they are not taken from one table."""


def distance_of_length(
    invocation: Invocation, evidence: Evidence, learned: Sequence[Contraction], line: CodeLocation | None
) -> Finding | None:
    """Scores of the same two tokens that are others where the sequence has one token less.

    As where the first vectors of a table are taken for those of the sequence, and not the last ones, or a row is cut
    off at the wrong end when products are shifted. Vectors that are made anew for each length, of functions that are as
    wide as the sequence is long (Enformer, Avsec et al. 2021), are meant to be others.

    Args:
        invocation: a call with one sequence.
        evidence: of an attention to whose scores learned vectors of distances are added.
        learned: the products with these vectors.
        line: where these meet the queries or keys.
    """
    if len(invocation.streams) != 1 or len(invocation.streams[0].token_axes) != 1:
        return None
    instance, tokens = evidence.base.instance, invocation.tokens_of(invocation.streams[0])
    base = instance.run.trace
    shorter, longer = (_run(invocation, base, change) for change in (-1, 1))
    if shorter is None or longer is None:  # of a sequence of one length each place may have what it wants
        return None
    if any(_is_made_for_its_length(instance.run.depends, each, base, shorter) for each in learned):
        return None
    scores = instance.scores[0]
    operands = [
        (base.taken(place).data, shorter.taken(place).data) for place in (scores.left_place, scores.right_place)
    ]
    if not all(_are_same(_without_last(one, tokens, 1), other) for one, other in operands):
        return None
    softmax = instance.softmaxes[0]
    whole, part = (trace.operations[softmax.index].inputs[0].data for trace in (base, shorter))
    kept = _without_last(whole, tokens, 2)
    if kept is None or kept.shape != part.shape or _are_same(kept, part):
        return None
    message = (
        f"a learned vector of a distance is added to the scores, and it is another one of {tokens - 1} tokens than of "
        f"{tokens}: the scores of the same two tokens differ by up to {_gap(kept, part):.2g}"
    )
    return Finding("violation", "positions-relative", "positions", message, line)


def _is_made_for_its_length(
    depends: Collection[tuple[int, int]], product: Contraction, base: Trace, other: Trace
) -> bool:
    """Whether most numbers of the vectors of one length are in none of those of the other length."""
    place = product.right_place if product.left_place in depends else product.left_place
    one, two = (each.taken(place).data.double().flatten() * 10.0**DIGITS for each in (base, other))
    return float(torch.isin(two.round(), one.round()).double().mean()) < SHARED


def _run(invocation: Invocation, base: Trace, change: int) -> Trace | None:
    """The run of the call with more or fewer tokens; None where it has other steps, or fails."""
    given = with_tokens(invocation, change)
    run = None if given is None else record_invocation(invocation, given)
    return run if run is not None and not run.error and run.same_operations(base) else None


def _without_last(numbers: Tensor, tokens: int, axes: int) -> Tensor | None:
    """The numbers less those of the last token, along each of so many axes; None where it has others of that length."""
    found = [axis for axis, size in enumerate(numbers.shape) if size == tokens]
    if len(found) != axes:
        return None
    for axis in found:
        numbers = numbers.narrow(axis, 0, tokens - 1)
    return numbers


def _are_same(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and one.shape == other.shape and _gap(one, other) <= SAME * max(1.0, _largest(one))


def _largest(numbers: Tensor) -> float:
    return float(numbers[numbers.isfinite()].abs().max().nan_to_num()) if bool(numbers.isfinite().any()) else 0.0


def _gap(one: Tensor, other: Tensor) -> float:
    known = one.isfinite() & other.isfinite()
    return float((one - other)[known].abs().max()) if bool(known.any()) else 0.0
