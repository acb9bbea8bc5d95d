"""The rows of projections inside a model as its tokens: changed one at a time, in all attentions of a run at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.roles.influence import Influence, Source, influence_of, record_invocation
from regard.check.roles.instances import AttentionInstance
from regard.check.roles.local import (
    are_tokens_mixed,
    are_tokens_summed,
    of_tokens,
    parts_made,
    projections_of,
    with_norm,
)
from regard.check.roles.owners import NONE, SEVERAL
from regard.check.roles.recurrences import JOINS, joined_ends
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["LocalInfluence", "local_influences", "rows_inside"]

OUTER_ORDERS = ("samples first", "tokens first")
"""Of the rows of a projection: those in which its samples are the first or the last axis."""
TOO_MANY_ROWS = "the rows of its projections are too many to be changed one at a time"
FAULTS = (RuntimeError, IndexError, ValueError)
"""What an attention that is unlike all others may raise: it alone is not seen then."""
MAX_RUNS = 200
"""Changed runs for one attention."""


@dataclass(frozen=True, eq=False)
class LocalInfluence:
    """The influence of the rows that an attention's projections make, as if they were the tokens of the input."""

    influence: Influence
    streams: list[str]
    """The names of the projections, as those of streams; and arguments of ids that no projection changes."""


@dataclass(frozen=True, eq=False)
class _RowChanges:
    """What is changed to find the influence of the rows of one attention."""

    instance: AttentionInstance
    held: dict[int, Tensor]
    """Its projections as they were, by the index of their operation."""
    changes: list[tuple[Source, dict[int, Tensor]]]
    """Each row or sample, and what operations return instead."""
    names: list[str]
    """Of its streams."""
    ids: set[str]
    """The arguments that are among them."""


def rows_inside(
    invocation: Invocation,
    instances: Sequence[AttentionInstance],
    influence: Influence,
    frozen: Mapping[int, Tensor],
    samples: Influence,
) -> list[tuple[bool, LocalInfluence | None] | Exception]:
    """For each attention whether the tokens of the input are mixed where it reads them, and its rows where they are.

    Rows that one matrix for all tokens sums are none.

    Args:
        invocation: the call.
        instances: attentions.
        influence: of the tokens, with the weighted sums of all attentions held.
        frozen: these sums, by the index of their operation.
        samples: the influence of the samples where these are not held.

    Returns:
        Both, or the error of an attention whose rows cannot be changed.
    """
    streams = [each.argument for each in invocation.streams]
    found: list[tuple[bool, LocalInfluence | None] | Exception] = []
    inside: list[int] = []
    for number, instance in enumerate(instances):
        try:
            is_mixed = are_tokens_mixed(instance, influence, streams, samples)
            if is_mixed and not are_tokens_summed(instance, influence, streams):
                inside.append(number)
            found.append((is_mixed, None))
        except FAULTS as error:
            found.append(error)
    several = [instances[number] for number in inside]
    for number, local in zip(inside, local_influences(invocation, several, influence, frozen, samples), strict=True):
        found[number] = local if isinstance(local, Exception) else (True, local)
    return found


def local_influences(
    invocation: Invocation,
    instances: Sequence[AttentionInstance],
    influence: Influence,
    frozen: Mapping[int, Tensor],
    samples: Influence,
) -> list[LocalInfluence | Exception | None]:
    """The influence of each row of the projections of queries, keys and values, as if it were a token of the input.

    The weighted sums are held: what the rows of one attention change reaches no other one, so that a run changes a row
    of each. Attentions that are reached all the same, as by scores that the next layer adds, have runs of their own.

    Args:
        invocation: the call.
        instances: attentions.
        influence: of the samples of the input.
        frozen: the weighted sums of all attentions, by the index of their operation.
        samples: the influence of the samples where these are not held.

    Returns:
        That of each attention; None where no projection is found; or the error of one whose rows cannot be changed, as
        because there are too many.
    """
    planned: list[_RowChanges | Exception | None] = []
    for instance in instances:
        try:
            planned.append(_row_changes(invocation, instance, influence, samples))
        except FAULTS as error:
            planned.append(error)
    made: dict[int, LocalInfluence | Exception] = {}
    for group in _apart([each for each in planned if isinstance(each, _RowChanges)], influence.base, frozen):
        made.update(_changed(invocation, group, influence.base, frozen))
    return [made[id(each)] if isinstance(each, _RowChanges) else each for each in planned]


def _row_changes(
    invocation: Invocation, instance: AttentionInstance, influence: Influence, samples: Influence
) -> _RowChanges | None:
    """What is to be changed for one attention.

    Raises:
        ValueError: there are too many rows.
    """
    projections = [*dict.fromkeys(of_tokens(each, instance) for each in projections_of(instance))]
    if not projections:
        return None
    # What a projection makes of another one's rows is of its own: keys that a convolution makes of projected tokens.
    normed = [with_norm(each, instance) for each in projections]
    held = {each.index: each.outputs[0].data for each in (*projections, *normed)}
    again = _computed_again(projections, instance)
    projections = [each for each in projections if each.index not in again]
    several = [_rows(each, influence, samples) for each in projections]
    known = {order for orders in several if len(orders) == 1 for order in orders}
    if not all(several):
        return None
    known = known or _of_one_sample(instance, projections, several)
    rows = [orders[min(orders, key=lambda order: order not in known)] for orders in several]
    if sum(int(labels.max()) + 1 for each in rows for labels in each) > MAX_RUNS:
        raise ValueError(TOO_MANY_ROWS)
    changes, names = [], []
    for operation, (tokens, of_samples) in zip(projections, rows, strict=True):
        norm = with_norm(operation, instance)
        name, output = f"projection {operation.index}", norm.outputs[0].data
        names.append(name)
        generator = torch.Generator().manual_seed(operation.index)
        fresh = output + torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        for kind, labels in (("sample", of_samples), ("token", tokens)):
            for index in range(int(labels.max()) + 1):
                moved = torch.where((labels == index).reshape(output.shape), fresh, output)
                same = {number: moved for number, first in again.items() if first == operation.index}
                changes.append((Source(name, kind, index), {norm.index: moved, **same}))
    ids = {each.argument for each in invocation.streams if each.role == "ids"} & _given(instance, influence)
    return _RowChanges(instance, held, changes, [*names, *sorted(ids)], ids)


def _apart(several: Sequence[_RowChanges], base: Trace, frozen: Mapping[int, Tensor]) -> list[list[_RowChanges]]:
    """Groups of attentions none of which reads what the projections of another one of its group make."""
    held = set(frozen).union(*(each.held for each in several))
    made = [base.computed_of(each.held, held) for each in several]
    read = [base.computed_for({one.operation.index for one in each.instance.sums}, held) for each in several]
    groups: list[list[int]] = []
    for mine in range(len(several)):
        for group in groups:
            if not any(made[mine] & read[other] or made[other] & read[mine] for other in group):
                group.append(mine)
                break
        else:
            groups.append([mine])
    return [[several[each] for each in group] for group in groups]


def _changed(
    invocation: Invocation, group: Sequence[_RowChanges], base: Trace, frozen: Mapping[int, Tensor]
) -> Iterator[tuple[int, LocalInfluence | Exception]]:
    """The influence for each of a group of attentions."""
    held = dict(frozen)
    for each in group:
        held |= each.held
    ids = set[str]().union(*(each.ids for each in group))
    of_ids = influence_of(invocation, base, frozen=held, keep=lambda source: source.stream in ids)
    runs: list[Trace] = []
    for number in range(max(len(each.changes) for each in group)):
        changes = held.copy()
        for each in group:
            changes |= each.changes[number][1] if number < len(each.changes) else {}
        runs.append(record_invocation(invocation, frozen=changes))
    for each in group:
        found = Influence(base, [run for run in of_ids.runs if run[0].stream in each.ids])
        for (source, changes), together in zip(each.changes, runs, strict=False):
            run = together
            if len(group) > 1 and not run.same_operations(base):  # other steps, for the sake of another one
                run = record_invocation(invocation, frozen={**held, **changes})
            if run.same_operations(base):
                found.runs.append((source, run))
        too_many = len(found.runs) > MAX_RUNS
        yield id(each), ValueError(TOO_MANY_ROWS) if too_many else LocalInfluence(found, each.names)


def _rows(operation: Operation, influence: Influence, unheld: Influence) -> dict[str, tuple[Tensor, Tensor]]:
    """For each number of a projection's output its token and its sample, in each order of rows that may be meant.

    Rows of learned tokens depend on no sample, and may be in any: those of the other projections tell in which.
    """
    output = operation.outputs[0].data
    axis = 1 if operation.name == "convolution" else output.ndim - 1
    if output.ndim < 2:
        return {}
    shape = [1 if at == axis else size for at, size in enumerate(output.shape)]
    numbers = torch.arange(output.numel() // output.shape[axis]).reshape(shape).expand(output.shape)
    held, free = (each.of(operation.index, 0, output=True)[each.sources("sample")] for each in (influence, unheld))
    influence, depends = (influence, held) if bool(held.any()) else (unheld, free)  # what earlier attentions read
    labels = torch.tensor([influence.runs[row][0].index for row in influence.sources("sample")], dtype=torch.long)
    count = int(labels.max()) + 1 if len(labels) else 1
    samples = torch.full(output.shape, NONE)
    for label in range(count):
        touched = depends[labels == label].any(0).any(axis, keepdim=True).expand(output.shape)
        samples = torch.where(touched, torch.where(samples == NONE, label, SEVERAL), samples)
    known = samples >= 0
    per_sample = (int(numbers.max()) + 1) // count
    orders = {"samples first": numbers // max(1, per_sample), "tokens first": numbers % count}
    beside_each_other: dict[str, int] = {}
    for beside in range(2, per_sample):  # several sequences of each sample, as of its channels, tokens first
        if per_sample % beside == 0:
            order = f"{beside} sequences of a sample beside each other"
            orders[order], beside_each_other[order] = numbers // beside % count, beside
    found: dict[str, tuple[Tensor, Tensor]] = {}
    is_whole = operation.name in JOINS and operation.index in joined_ends(influence.base)
    for order, guess in orders.items():
        if (found and order not in OUTER_ORDERS) or not bool((samples == guess)[known].all()):
            continue
        tokens = torch.zeros_like(numbers)
        for sample in sorted(set(guess.flatten().tolist())):
            mine = numbers[guess == sample]
            tokens[guess == sample] = torch.searchsorted(torch.tensor(sorted(set(mine.tolist()))), mine)
        if (several := beside_each_other.get(order)) is not None:  # one sequence after the other, as where they are cut
            tokens = tokens % several * (per_sample // several) + tokens // several
        found[order] = (torch.zeros_like(tokens) if is_whole else tokens, guess)
    return found


def _of_one_sample(
    instance: AttentionInstance,
    projections: Sequence[Operation],
    several: Sequence[Mapping[str, tuple[Tensor, Tensor]]],
) -> set[str]:
    """The first order of rows in which each query is multiplied by keys of its own sample; none where there is none.

    As of learned queries, which depend on no sample, beside one token of each.
    """
    run = instance.run
    for order in dict.fromkeys(order for orders in several for order in orders):
        samples = torch.full((run.num_tags + 1,), NONE)
        for each, orders in zip(projections, several, strict=True):
            if order in orders and each.index in run.first_tag:
                first, labels = run.first_tag[each.index], orders[order][1].flatten()
                samples[first : first + len(labels)] = labels
        pairs = [
            [
                samples[run.tags.inputs[place[0]][place[1]].flatten()[terms]].amax(-1)
                for place, terms in ((each.left_place, each.left_terms), (each.right_place, each.right_terms))
            ]
            for each in instance.scores
        ]
        if all(bool((one == other)[(one >= 0) & (other >= 0)].all()) for one, other in pairs):
            return {order}
    return set()


def _computed_again(projections: Sequence[Operation], instance: AttentionInstance) -> dict[int, int]:
    """Projections that make the same rows as one before, and the index of that one: its rows are theirs.

    A decoder that takes one step after the other may project the same encoded tokens in each of them, by one line.
    """
    found: dict[int, int] = {}
    first: list[tuple[Operation, frozenset[str]]] = []
    parts = parts_made(instance)
    for each in projections:
        of_parts = parts.get(each.index, frozenset())
        same = next((one for one, others in first if others == of_parts and _are_same(one, each)), None)
        if same is None or with_norm(same, instance) is not same or with_norm(each, instance) is not each:
            first.append((each, of_parts))
        else:
            found[each.index] = same.index
    return found


def _are_same(one: Operation, other: Operation) -> bool:
    """Whether a line has computed the same twice."""
    return (
        one.name == other.name
        and one.location is not None
        and one.location == other.location
        and len(one.inputs) == len(other.inputs)
        and all(torch.equal(mine.data, theirs.data) for mine, theirs in zip(one.inputs, other.inputs, strict=True))
        and torch.equal(one.outputs[0].data, other.outputs[0].data)
    )


def _given(instance: AttentionInstance, influence: Influence) -> set[str]:
    """The streams that queries or keys are of without a projection."""
    run = instance.run
    places = [place for each in instance.scores for place in each.places]
    return {
        source.stream
        for operation, number in places
        if not run.owner_of(run.tags.inputs[operation][number])
        for (source, _), depends in zip(influence.runs, influence.of(operation, number), strict=True)
        if bool(depends.any())
    }
