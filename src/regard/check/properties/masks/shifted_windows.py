"""Windows of a picture that was rolled: what the roll brings together from opposite ends is hidden by the mask."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.evidence import HIDDEN
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of
from regard.check.properties.outputs.inner_tokens import tokens_of_queries
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import influence_of, record_invocation
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation
from regard.check.trace.operation import Operation

__all__ = ["masks_without_a_shift", "shifted_window_findings", "shifted_windows_within"]

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
    if allowed is not None:
        yield from _at_the_other_end(table, allowed, sides)
        are_places = table.streams == tuple(evidence.roles)  # and no rows of a projection, in an order of their own
        if are_places and not evidence.is_masked and not invocation.masks:
            yield from _cut_in_one_piece(table, allowed, sides)


def shifted_windows_within(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """The same of one of several attentions, whose tokens are rows of its projections and not of the input.

    Args:
        invocation: the call.
        evidence: of the attention.
    """
    table = evidence.base
    is_rolled = any(each.name == "roll" for each in table.instance.run.trace)
    if not is_rolled or _ROUND.search(evidence.code) or not bool((table.weight.abs() <= ZERO_WEIGHT).any()):
        return
    found = _of_rows(invocation, table)
    if found is not None:
        places, sides = found
        allowed = allowed_of(evidence)[0, 0]
        if allowed.shape == (len(places), len(places)):
            yield from _at_the_other_end(table, allowed[places][:, places], sides)


def masks_without_a_shift(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A mask within some windows of a picture, and not in others, in an attention before which nothing was rolled.

    Beside others of which the picture was: the mask is that of their roll. Padding of a picture is hidden as well.

    Args:
        invocation: the call.
        several: its attentions.
    """
    trace = several[0].base.instance.run.trace if len(several) > 1 else None
    if trace is None or invocation.masks or any("pad" in each.name for each in trace):
        return
    rolls = [each for each in trace if each.name == "roll"]
    for evidence in several:
        table, fresh = evidence.base, evidence.fresh
        if not rolls or _is_rolled([each for each in rolls if each.index < table.instance.scores[0].operation.index]):
            continue
        if evidence.is_masked or bool((table.group < 0).any()) or len(table.weight) != len(fresh.weight):
            continue
        hidden = (table.weight.abs() <= ZERO_WEIGHT) & (fresh.weight.abs() <= ZERO_WEIGHT)
        groups = torch.zeros(int(table.group.max()) + 1, dtype=torch.bool)
        cut = groups.index_put((table.group[hidden],), torch.tensor(True))
        whole = groups.index_put((table.group,), torch.tensor(True)) & ~cut
        later = hidden & (table.key.token > table.query.token)
        if bool(cut.any()) and bool(whole.any()) and not torch.equal(later, hidden):
            row = int(hidden.nonzero()[0])
            message = (
                f"nothing is rolled where it is, and a mask hides key {int(table.key.token[row])} from query "
                f"{int(table.query.token[row])} in the same window, as after a roll: other windows are whole"
            )
            instance = table.instance
            yield Finding("violation", "shifted-windows", "mask", message, instance.scores_location, instance.module)
            return


def _is_rolled(rolls: Sequence[Operation]) -> bool:
    """Whether what was rolled is not rolled back again: along some axis the shifts are not 0 together."""
    shifts = Counter[int]()
    for each in rolls:
        for shift, axis in zip(each.args[1], each.args[2] if len(each.args) > 2 else (), strict=False):
            shifts[axis % len(each.outputs[0].shape)] += shift
    return any(shifts.values()) or any(len(each.args) < 3 for each in rolls)


def _of_rows(invocation: Invocation, table: AttentionTable) -> tuple[Tensor, list[int]] | None:
    """By place of a rolled picture, which row of a projection is of it, and its height and width; None if not known.

    What a roll returns is replaced by the numbers of its places: they come to the projection where nothing stands
    between that changes them.
    """
    base, streams = table.instance.run.trace, {*table.query.stream.tolist(), *table.key.stream.tolist()}
    projection = re.fullmatch(r"projection (\d+)", table.streams[streams.pop()]) if len(streams) == 1 else None
    if projection is None:
        return None
    index = int(projection[1])
    for roll in (each for each in base.operations[:index] if each.name == "roll"):
        shape = roll.outputs[0].shape
        later = [each for each in base.operations[roll.index : index] if each.name == "roll"]
        axes = sorted({axis % len(shape) for each in later for axis in each.args[2]})
        if len(axes) != 2 or 0 in axes:
            continue
        sides = [shape[axis] for axis in axes]
        order = [0, *axes, *(axis for axis in range(1, len(shape)) if axis not in axes)]
        count = shape[0] * sides[0] * sides[1]
        numbers = torch.arange(count).view(shape[0], *sides, *[1] * (len(shape) - 3))
        numbers = numbers.permute([order.index(axis) for axis in range(len(shape))]).expand(shape)
        numbers = numbers.to(roll.outputs[0].data.dtype).roll(roll.args[1], roll.args[2])
        run = record_invocation(invocation, frozen={roll.index: numbers})
        if not run.same_operations(base):
            continue
        several = (each.data.flatten(0, -2) for each in run.operations[index].inputs if each.data.ndim > 1)
        rows = next((each for each in several if len(each) == count and bool((each == each[:, :1]).all())), None)
        if rows is not None:
            first = rows[: count // shape[0], 0]
            if torch.equal(first.sort().values, torch.arange(len(first)).to(first.dtype)):
                return first.argsort(), sides
    return None


def _at_the_other_end(table: AttentionTable, allowed: Tensor, sides: Sequence[int]) -> Iterator[Finding]:
    """What sees the other end of a picture, where a mask hides a part of that.

    Args:
        table: of the attention.
        allowed: (places, places): which keys are seen.
        sides: the height and the width of the picture.
    """
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


def _cut_in_one_piece(table: AttentionTable, allowed: Tensor, sides: Sequence[int]) -> Iterator[Finding]:
    """A window of adjacent places of a picture that a mask cuts, beside others that the roll joined of two ends.

    Args:
        table: of the attention; its tokens are the places.
        allowed: (places, places): which keys are seen.
        sides: the height and the width of the picture.
    """
    scored = ~table.dense(table.weight)[0, 0].isnan()
    if scored.shape != allowed.shape:
        return
    hidden, windows = scored & ~allowed, torch.unique(scored, dim=0)
    if not torch.equal(hidden, hidden.T) or not bool((windows.sum(0) == 1).all()):
        return
    pieces, several = list[Tensor](), 0
    for window in windows:
        places = window.nonzero().flatten()
        lines = [torch.unique(each) for each in (places // sides[1], places % sides[1])]
        if any(len(each) == side for each, side in zip(lines, sides, strict=True)):
            return  # what a roll joins of it is adjacent as well
        if all(int(each[-1] - each[0]) + 1 == len(each) for each in lines):
            pieces.append(places)
        else:
            several += 1
    for places in pieces if several else ():
        cut = hidden[places][:, places].nonzero()
        if len(cut):
            at, other = ("row {}, column {}".format(*divmod(int(places[each]), sides[1])) for each in cut[0])
            message = (
                f"the token at {at} does not see the one at {other}, which is in its window: the roll joined that of "
                "no two ends, and the mask of those that it joined cuts it as well"
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
