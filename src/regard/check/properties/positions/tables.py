"""Tables of positions: they are added once, before the scores, and each token has a row of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.positions.embedding_scales import embedding_scale_findings
from regard.check.roles.contractions import Contraction
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["position_table_findings"]

_POSITIONS = re.compile(r"(?:^|[._])pos(?![a-z])|position|(?:^|[._])w?pe(?:$|[._])", re.I)
_ROTARY = re.compile(r"(?<![a-z])rope(?![a-z])|rotary", re.I)

_QUOTIENTS = ("floor_divide", "bitwise_right_shift", "__rshift__", "bucketize")
"""Operations by which several places become one."""
_SIDE = re.compile(r"\d+|rows?|cols?|columns?|[hwxyij]|height|width|horizontal|vertical")
"""The last word of one of several tables of positions, each of an axis of its own."""


def position_table_findings(base: Trace, several: Sequence[Evidence], found: Sequence[Finding]) -> Iterator[Finding]:
    """What is wrong with tables that no score shows, or that all scores show alike.

    Args:
        base: a run.
        several: its attentions.
        found: what is known of these.
    """
    first = several[0]
    of_tokens = base.made_of(base.arguments[each].storage for each in first.base.streams if each in base.arguments)
    applied = list(_applied(base, of_tokens, first.num_tokens))
    yield from _added_twice(applied)
    yield from _thrown_away(base, applied)
    yield from _of_one_text(base, several)
    yield from _one_row(base, first.num_tokens)
    yield from _of_one_side(base)
    yield from _row_of_the_length(base)
    yield from _multiplied(base, applied)
    yield from embedding_scale_findings(base)
    is_absent = any((each.kind, each.property) == ("absent", "positions") for each in found)
    if is_absent and len(several) == 1:
        yield from _not_before_the_scores(base, first, applied)


def _applied(base: Trace, of_tokens: set[int], count: int) -> Iterator[tuple[Operation, TensorRecord, TensorRecord]]:
    """The sums and products of something made of tokens and something that is not, and is of a row for each token."""
    for operation in base:
        if operation.name.rstrip("_") not in ("add", "sub", "mul") or len(operation.inputs) != 2:
            continue
        for one, table in (operation.inputs, operation.inputs[::-1]):
            is_of_rows = _is_by_row(table.data, count) and not _is_of_samples(table.data, one.data, count)
            if one.storage in of_tokens and table.storage not in of_tokens and is_of_rows:
                yield operation, one, table


def _is_of_samples(table: Tensor, one: Tensor, count: int) -> bool:
    """Whether the rows may be of samples, of which there are as many, as of a modulation that all tokens have alike."""
    if table.ndim < 3 or table.ndim != one.ndim:
        return False
    axes = [axis for axis, size in enumerate(one.shape[:-1]) if size == count]
    return len(axes) > 1 and all(table.shape[axis] == 1 for axis in axes[1:])


def _is_by_row(table: Tensor, count: int) -> bool:
    """Whether it has as many rows as there are tokens, not all the same, and is no mask."""
    if not table.is_floating_point() or count < 2 or table.ndim < 2 or bool(((table == 0) | (table == 1)).all()):
        return False
    if not bool(table.isfinite().all()) or table.shape[-1] == 1:
        return False
    axes = [axis for axis, size in enumerate(table.shape[:-1]) if size == count]
    return any(bool((table.movedim(axis, 0) != table.movedim(axis, 0)[:1]).any()) for axis in axes)


def _added_twice(applied: Sequence[tuple[Operation, TensorRecord, TensorRecord]]) -> Iterator[Finding]:
    sums: dict[int, tuple[Tensor, CodeLocation | None]] = {}
    for operation, one, table in applied:
        if operation.name.rstrip("_") != "add":
            continue
        before = sums.get(one.storage)
        if before is not None and before[0].shape == table.data.shape and torch.equal(before[0], table.data):
            line = before[1]
            told = "" if line is None or line == operation.location else f", as in line {line.line}"
            message = f"the same table of positions is added to the tokens a second time{told}"
            yield Finding("violation", "positions-once", "positions", message, operation.location)
            return
        sums[operation.outputs[0].storage] = table.data, operation.location


def _thrown_away(base: Trace, applied: Sequence[tuple[Operation, TensorRecord, TensorRecord]]) -> Iterator[Finding]:
    """A sum of tokens and a table that no later operation takes."""
    used = {each.storage for each in base.outputs} | {each.storage for step in base for each in step.inputs}
    for operation, _, table in applied:
        if operation.name == "add" and operation.outputs[0].storage not in used and table.data.ndim > 1:
            message = "a table of positions is added to the tokens, and the sum is thrown away"
            yield Finding("violation", "positions-without-effect", "positions", message, operation.location)
            return


def _of_one_text(base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Of two sequences of ids, as a source and a target, one alone that gets positions from a table."""
    first = several[0]
    ids = {name: base.arguments[name] for name in first.base.streams if name in base.arguments}
    if len(ids) != 2 or any(each.data.is_floating_point() or each.data.ndim != 2 for each in ids.values()):
        return
    scores = {name: min((one.operation.index for one in _scores_of(name, several)), default=-1) for name in ids}
    placed = {}
    for name, record in ids.items():
        made = base.made_of([record.storage])
        before = (each for each in _applied(base, made, record.shape[1]) if each[0].index < scores[name])
        placed[name] = any(each[0].name.rstrip("_") == "add" for each in before)
    if min(scores.values()) >= 0 and sum(placed.values()) == 1:
        with_one, without = sorted(ids, key=placed.__getitem__, reverse=True)
        message = f"a table of positions is added to the tokens of {with_one}, and none to those of {without}"
        yield Finding("violation", "positions-without-effect", "positions", message)


def _scores_of(name: str, several: Sequence[Evidence]) -> Iterator[Contraction]:
    """The scores of the attentions of a sequence to itself."""
    for each in several:
        numbers = {*each.base.query.stream.tolist(), *each.base.key.stream.tolist()}
        if {each.base.streams[number] if number >= 0 else "" for number in numbers} == {name}:
            yield from each.base.instance.scores


def _one_row(base: Trace, count: int) -> Iterator[Finding]:
    """A table, by its name of positions, that is looked up at the same place for all tokens, or by what they are."""
    of_positions: dict[str, list[Operation]] = {}
    ids = list[TensorRecord]()
    for operation in base:
        if operation.name == "embedding" and _POSITIONS.search(operation.module):
            of_positions.setdefault(operation.module, []).append(operation)
        elif operation.name == "embedding":
            ids.append(operation.inputs[1])
    for several in of_positions.values():
        first, rows = several[0], several[0].inputs[0].shape[0]
        places = torch.cat([each.inputs[1].data.flatten() for each in several])
        if len(torch.unique(places)) == 1 < min(count, rows) and not all(_are_coarse(base, each) for each in several):
            message = f"the table of positions is looked up at {int(places[0])} for all tokens"
        elif any(_are_ids(each.inputs[1], ids) for each in several):
            message = "the table of positions is looked up at the ids of the tokens, not at their places"
        else:
            continue
        yield Finding("violation", "positions-without-effect", "positions", message, first.location)
        return


def _are_coarse(base: Trace, looked_up: Operation) -> bool:
    """Whether the places are quotients of several others, as the rows of a grid are, places // width."""
    made = {looked_up.inputs[1].storage}
    for operation in reversed(base.operations[: looked_up.index]):
        if not operation.inputs or made.isdisjoint(each.storage for each in operation.outputs):
            continue
        is_rounded = operation.name.startswith("div") and operation.kwargs.get("rounding_mode") is not None
        is_quotient = operation.name.rstrip("_") in _QUOTIENTS or is_rounded
        if is_quotient and len(torch.unique(operation.inputs[0].data)) > 1:
            return True
        made.update(each.storage for each in operation.inputs)
    return False


def _of_one_side(base: Trace) -> Iterator[Finding]:
    """Two tables, of the two sides of a grid or of one list, that are looked up at the same places and added up."""
    parts: dict[int, list[Operation]] = {}
    for operation in base:
        if operation.name == "embedding" and _POSITIONS.search(operation.module):
            parts[operation.outputs[0].storage] = [operation]
        elif operation.is_addition:
            one, other = (parts.get(each.storage, []) for each in operation.inputs)
            for first, second in ((first, second) for first in one for second in other):
                if _are_sides(first.module, second.module) and _look_up_the_same(first, second):
                    names = " and ".join(sorted({first.module, second.module}))
                    message = f"of two tables of positions, {names}, both are looked up at the same places"
                    yield Finding("violation", "positions-without-effect", "positions", message, second.location)
                    return
            parts[operation.outputs[0].storage] = [*one, *other]


def _are_sides(one: str, other: str) -> bool:
    """Whether two names of modules differ in one word alone: a number of a list, or the name of a side."""
    words = [each.lower() for each in re.split(r"[._]", one)], [each.lower() for each in re.split(r"[._]", other)]
    if len(words[0]) != len(words[1]):
        return False
    different = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
    return len(different) == 1 and all(_SIDE.fullmatch(each) for each in different[0])


def _look_up_the_same(one: Operation, other: Operation) -> bool:
    """Whether two tables of as many rows, none of them sines, are looked up at the same several places in memory."""
    (table, places), (second, others) = one.inputs[:2], other.inputs[:2]
    is_same = (places.storage, places.offset, places.shape) == (others.storage, others.offset, others.shape)
    is_of_learned = table.shape == second.shape and not any(_are_places(each.data, 0) for each in (table, second))
    return is_same and is_of_learned and torch.equal(places.data, others.data) and len(torch.unique(places.data)) > 1


def _row_of_the_length(base: Trace) -> Iterator[Finding]:
    """A table of sines of which all tokens get one row, that of how many they are, as by table[:, x.shape[1]].

    They are as many as they are where it is added: a class token, or one of a condition, may have been put to them.
    """
    given = base.made_of(each.storage for each in base.arguments.values())
    rows: dict[tuple[int, int], tuple[Tensor, int]] = {}
    for operation in base:
        if operation.name == "select":
            table, row, count = operation.inputs[0], operation.outputs[0], operation.args[2]
            is_longer = table.data.ndim > 1 and table.shape[operation.args[1]] > count > 1
            if is_longer and table.storage not in given and _are_places(table.data, operation.args[1]):
                rows[row.storage, row.offset] = row.data.flatten(), count
        elif operation.is_addition:
            for each in operation.inputs:
                row_added, count = rows.get((each.storage, each.offset), (None, 0))
                is_row = row_added is not None and torch.equal(row_added, each.data.flatten())
                is_of_all = count in operation.outputs[0].shape[:-1]
                if is_row and is_of_all and any(one.storage in given for one in operation.inputs):
                    message = f"of {count} tokens all get row {count} of the table of positions, and no other"
                    yield Finding("violation", "positions-without-effect", "positions", message, operation.location)
                    return


def _are_places(table: Tensor, axis: int) -> bool:
    """Whether the rows of a table are sines and cosines of places: as long as one another, and the first 0s and 1s."""
    rows = table.movedim(axis, 0).flatten(1)
    if not rows.is_floating_point() or rows.shape[1] < 2 or not bool(rows.isfinite().all()):
        return False
    is_begun = bool(((rows[0] == 0) | (rows[0] == 1)).all()) and 0 < float(rows[0].sum()) < rows.shape[1]
    return is_begun and bool(torch.isclose((rows**2).sum(1), (rows[0] ** 2).sum(), atol=1e-4).all())


def _are_ids(places: TensorRecord, ids: Sequence[TensorRecord]) -> bool:
    """Whether places are the ids of tokens, of which one has a higher number than all that come after it."""
    return any(
        each.shape == places.shape
        and torch.equal(each.data, places.data)
        and (each.storage == places.storage or bool((places.data.diff(dim=-1) < 0).any()))
        for each in ids
    )


def _multiplied(base: Trace, applied: Sequence[tuple[Operation, TensorRecord, TensorRecord]]) -> Iterator[Finding]:
    """A table, by its name of learned positions, that tokens are multiplied by, and that is added to nothing."""
    rows = {each.outputs[0].storage for each in base if each.name == "embedding" and _POSITIONS.search(each.module)}
    is_added = any(
        each.name.rstrip("_") in ("add", "cat") and any(one.storage in rows for one in each.inputs) for each in base
    )
    for operation, _, table in applied:
        if not is_added and operation.name.rstrip("_") == "mul" and table.storage in rows:
            message = "tokens are multiplied by the table of positions, and it is not added to them"
            yield Finding("violation", "positions-added", "positions", message, operation.location)
            return


def _not_before_the_scores(
    base: Trace, evidence: Evidence, applied: Sequence[tuple[Operation, TensorRecord, TensorRecord]]
) -> Iterator[Finding]:
    """A table that is added to what was read, or a rotation of anything else than queries and keys."""
    instance = evidence.base.instance
    read = base.made_of(each.output.storage for each in instance.sums)
    scored = base.made_of(each.output.storage for each in instance.scores) - read
    for operation, one, table in applied:
        if one.storage in scored:  # weights that fall with the distance: what is multiplied is no vector of a token
            continue
        is_sum = operation.name.rstrip("_") == "add"
        if is_sum and one.storage in read and _POSITIONS.search(evidence.code):
            what = "a table of positions is added to what was read"
        elif not is_sum and not table.learned and _ROTARY.search(evidence.code):
            what = "what is rotated by its position is neither a query nor a key"
        else:
            continue
        message = f"{what}: for the scores the same token is the same everywhere"
        yield Finding("violation", "positions-without-effect", "positions", message, operation.location)
        return
