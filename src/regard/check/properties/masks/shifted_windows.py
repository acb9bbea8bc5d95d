"""Windows of a picture that was rolled: what the roll brings together from opposite ends is hidden by the mask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.evidence import HIDDEN
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of
from regard.check.properties.outputs.inner_tokens import tokens_of_queries
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import influence_of
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation

__all__ = ["shifted_window_findings"]

_ROUND = re.compile(r"longitud|cyclic(?:al)? (?:data|bound|axis|dimension)|periodic|circular|globe|earth|spheric", re.I)
"""In code of pictures that go on at their other end."""

SAME = 1e-9
"""A smaller difference of what is added is none."""


def shifted_window_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether a token sees the other end of the picture, and not what is between, where a mask hides a part of that.

    Liu et al. 2021, "Swin Transformer", section 3.2: windows after a cyclic shift hold parts that are not adjacent in
    the picture, and a mask limits attention to each part. Without any mask the picture is taken to go on there.

    Args:
        invocation: the call.
        evidence: of its attention.
    """
    table, stream = evidence.base, invocation.streams[0]
    is_rolled = any(each.name == "roll" for each in table.instance.run.trace)
    if not is_rolled or len(invocation.streams) > 1 or len(stream.token_axes) != 2 or _ROUND.search(evidence.code):
        return
    sides = [invocation.arguments[stream.argument].shape[axis] for axis in stream.token_axes]
    if int(max(table.query.token.max(), table.key.token.max())) < sides[0] * sides[1]:
        yield from _added_without_effect(table, sides)
    if not bool((table.weight.abs() <= ZERO_WEIGHT).any()):
        return
    allowed = _by_places(invocation, evidence, sides[0] * sides[1])
    if allowed is None:
        return
    seen = allowed.view(-1, *sides)
    ends = [_sees_the_other_end(seen.any(2 - axis)) for axis in range(2)]
    near = ~(ends[0] | ends[1]) & ~(seen.flatten(1).all(-1))
    for several in ends:
        if bool(several.any()) and bool(near.any()):
            query = int(several.nonzero()[0])
            keys = allowed[query].nonzero().flatten()
            farthest = int(keys[(keys - query).abs().argmax()])
            at, other = ("row {}, column {}".format(*divmod(place, sides[1])) for place in (query, farthest))
            message = (
                f"the token at {at} sees the one at {other}, at the other end of the picture: the roll brought both "
                "into one window, and the mask hides other keys of it"
            )
            yield Finding("violation", "shifted-windows", "mask", message, table.instance.scores_location)
            return


def _by_places(invocation: Invocation, evidence: Evidence, count: int) -> Tensor | None:
    """(places, places) of the picture: which keys are seen; None where that is not known.

    Where a norm over the picture comes before them, tokens are numbered as the rows of their projection.
    """
    allowed, table = allowed_of(evidence)[0, 0], evidence.base
    if allowed.shape != (count, count):
        return None
    if table.streams == tuple(each.argument for each in invocation.streams):
        return allowed
    if not torch.equal(table.query.stream, table.key.stream):
        return None
    influence = influence_of(invocation, table.instance.run.trace, keep=lambda source: source.kind == "token")
    own = tokens_of_queries(table, influence, count)
    if own is None:
        return None
    places = torch.tensor(own).argsort()
    return allowed[places][:, places]


def _added_without_effect(table: AttentionTable, sides: Sequence[int]) -> Iterator[Finding]:
    """Numbers that nobody learns, that differ among windows for tokens as far apart, and that hide no key there.

    Args:
        table: of windows of a picture that was rolled.
        sides: the height and the width of the picture.
    """
    run = table.instance.run
    given = {each.storage for each in run.trace.arguments.values()}
    learned = {one.storage for each in run.trace for one in each.inputs if one.learned}
    of_tokens, rows = run.trace.made_of(given | learned), table.rows_of_tags()
    for operation in run.trace:
        if operation.name != "add" or len(operation.inputs) != 2:
            continue
        tags = run.tags.inputs[operation.index]
        for added, beside in ((operation.inputs[1], tags[0]), (operation.inputs[0], tags[1])):
            of_scores = rows[beside]
            is_whole = bool((of_scores >= 0).all()) and of_scores.shape == operation.outputs[0].shape
            if not is_whole or added.storage in of_tokens or not added.data.is_floating_point():
                continue
            numbers = torch.zeros(len(table.weight), dtype=added.data.dtype)
            numbers[of_scores.flatten()] = added.data.expand(of_scores.shape).flatten()
            least, most = float(numbers.min()), float(numbers.max())
            if least > HIDDEN and not _are_of_offsets(table, sides, numbers):
                message = (
                    "what is added to the scores of some windows and not of others, as the mask of a roll, is from "
                    f"{least:.4g} to {most:.4g}: it hides no key"
                )
                yield Finding("violation", "shifted-windows", "mask", message, operation.location)
                return


def _are_of_offsets(table: AttentionTable, sides: Sequence[int], numbers: Tensor) -> bool:
    """Whether the same number is added in a head wherever key and query are as far apart, around the ends as well."""
    rows, columns = (
        (table.key.token // sides[1] - table.query.token // sides[1]) % sides[0],
        (table.key.token % sides[1] - table.query.token % sides[1]) % sides[1],
    )
    kinds = (table.head * sides[0] + rows) * sides[1] + columns
    _, kinds = torch.unique(kinds, return_inverse=True)
    count = int(kinds.max()) + 1
    most = torch.full((count,), -torch.inf, dtype=numbers.dtype).scatter_reduce(0, kinds, numbers, "amax")
    least = torch.full((count,), torch.inf, dtype=numbers.dtype).scatter_reduce(0, kinds, numbers, "amin")
    return bool((most - least <= SAME).all())


def _sees_the_other_end(seen: Tensor) -> Tensor:
    """(tokens): of (tokens, places) along an axis, whether both ends are seen, and some place between them is not."""
    return seen[:, 0] & seen[:, -1] & ~seen.all(-1)
