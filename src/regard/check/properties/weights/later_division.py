"""A softmax whose denominator comes after the weighted sum: values that grow by one raise a weighted mean by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.formula import fit_scores
from regard.check.properties.sums import query_numbers, sums_by
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.target import Invocation
from regard.check.trace.operation import TensorRecord, Trace

__all__ = ["later_division", "raised", "results_of"]

TOLERANCE = 1e-5
EXACT, NOTICEABLE = 1e-12, 1e-3
"""How far a sum is from 1 that is 1, and one that is another."""
MAX_PAIRS = 10_000_000


def later_division(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """That the weights sum to 1 in the end, or that nothing divides them; None where it cannot be told.

    Args:
        invocation: the call.
        evidence: of its attention.
    """
    instance = evidence.base.instance
    places = [instance.values_place(each) for each in instance.sums]
    given = raised(instance.run, [*places, *_beside_one_key(instance, places)])
    if not given:
        return None
    base = instance.run.trace
    run = record_invocation(invocation, frozen=given)
    if run.error or not run.same_operations(base) or not _are_raised_by_one(instance, run):
        return None
    known = torch.zeros(instance.run.num_tags + 1, dtype=torch.long)
    known[0] = -1
    gaps = [(after.data - before.data)[place >= 0] for before, after, place in results_of(instance, base, run, known)]
    if not gaps:
        return None
    gap = torch.cat(gaps)
    live = gap.abs() > TOLERANCE  # a query without keys has no weights
    error = float((gap[live] - 1).abs().max()) if bool(live.any()) else 1.0
    if error > TOLERANCE:
        return _never_divided(evidence, gap[live]) or _divided_of_some(instance, gap[live])
    message = f"over the keys of a query: sum 1 (to {max(error, 1e-16):.0e}) after the division by their sum"
    return Finding("holds", "weights-sum-later", "weights", message, instance.sums_location)


def _beside_one_key(instance: AttentionInstance, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where a chunk of one key takes its value: the exponential is that of 0 there, and the sum is a product.

    Args:
        instance: the attention.
        places: where its weighted sums take values.
    """
    run = instance.run
    lines = {each.operation.location for each in instance.sums}
    made = set[int]().union(*(run.owner_of(run.tags.inputs[index][number]) for index, number in places))
    of_scores = [run.tags.inputs[index][number].flatten() for each in instance.scores for index, number in each.places]
    asking = torch.unique(torch.cat(of_scores))  # one matrix may make queries and keys as well
    return [
        (operation.index, number)
        for operation in run.trace
        if operation.name == "mul" and operation.location in lines
        for number, tags in enumerate(run.tags.inputs[operation.index])
        if set() != run.owner_of(tags) <= made and not bool(torch.isin(tags[tags > 0], asking).any())
    ]


def _never_divided(evidence: Evidence, gap: Tensor) -> Finding | None:
    """Exponentials of scores whose sums, of more than 1, are what values of ones become in the end; None of others.

    Sums of less than 1 may leave a share to a sink.

    Args:
        evidence: of the attention.
        gap: by how much the numbers that the weighted sums become are raised.
    """
    sums = sums_by(query_numbers(evidence), evidence.base.weight)
    largest = float(sums.max())
    apart = (gap[:, None] - sums).abs().amin(-1) if gap.numel() * sums.numel() <= MAX_PAIRS else None
    if apart is None or largest <= 1 + TOLERANCE or not bool((apart <= TOLERANCE * gap.abs()).all()):
        return None
    if _are_weighed_again(evidence.base.instance):
        return None
    fit = fit_scores(evidence)
    if fit is None or not fit.linear:
        return None
    message = (
        f"the weights of a query are exponentials of its scores and sum to {float(sums.min()):.4g} to {largest:.4g} "
        "over its keys: nothing divides them by their sum"
    )
    return Finding("violation", "weights-sum-to-one", "weights", message, evidence.base.instance.sums_location)


def _divided_of_some(instance: AttentionInstance, gap: Tensor) -> Finding | None:
    """Keys that are read a chunk at a time, whose weights sum to 1 for some queries, and to something else for others.

    A running softmax (Milakov and Gimelshein 2018) multiplies what was read, and the sum, anew where a later chunk has
    a larger score. Where only one of the two is, the queries are right whose largest score is in the first chunk. Of
    a sink no query's weights sum to 1, and a gate has a number for each channel.

    Args:
        instance: the attention.
        gap: by how much the numbers that the weighted sums become are raised, where they are.
    """
    error = (gap - 1).abs()
    other = error > NOTICEABLE
    is_of_some = bool((error <= EXACT).any()) and bool(other.any())
    is_of_channels = 2 * len(torch.unique(gap.double().round(decimals=9))) > len(gap)
    if len(instance.sums) < 2 or not is_of_some or is_of_channels:
        return None
    worst = float(gap[error.argmax()])
    message = (
        f"keys are read a chunk at a time, and the weights of some queries sum to 1, those of others to {worst:.4g}: "
        "what was read of earlier chunks and the sum of its weights are not rescaled alike"
    )
    return Finding("violation", "weights-sum-to-one", "weights", message, instance.sums_location)


def _are_weighed_again(instance: AttentionInstance) -> bool:
    """Whether the weighted sums meet what is made of the tokens, or are summed themselves, as parts of chunks are."""
    run, sums = instance.run, {each.operation.index for each in instance.sums}
    for product in run.products:
        places = product.places
        for (index, number), other in zip(places, places[::-1], strict=True):
            if product.operation.index not in sums and run.owner_of(run.tags.inputs[index][number]) & sums:
                return other in run.depends or product.operation.name == "sum"
    return False


def raised(run: TaggedRun, places: Sequence[tuple[int, int]]) -> dict[int, Tensor]:
    """By the index of what made the values, its results plus one where they are values.

    Args:
        run: the run.
        places: where values are taken.
    """
    found: dict[int, Tensor] = {}
    for place, number in places:
        tags = run.tags.inputs[place][number].flatten()
        for index in run.owner_of(tags):
            made = run.trace.operations[index].outputs[0].data
            first = run.first_tag[index]
            mine = tags[(tags >= first) & (tags < first + made.numel())] - first
            held = found.setdefault(index, made.clone()).view(-1)
            held[mine] = made.flatten()[mine] + 1
    return found


def _are_raised_by_one(instance: AttentionInstance, run: Trace) -> bool:
    """Whether nothing but an addition stands between what made the values and the weighted sums."""
    for each in instance.sums:
        index, number = instance.values_place(each)
        before = instance.run.trace.operations[index].inputs[number].data
        after = run.operations[index].inputs[number].data
        if float((after - before - 1).abs().max()) > TOLERANCE:
            return False
    return True


def results_of(
    instance: AttentionInstance, base: Trace, run: Trace, place_of: Tensor
) -> Iterator[tuple[TensorRecord, TensorRecord, Tensor]]:
    """What the weighted sums became before the next matrix: in two runs, and what each number is of.

    Sums of several weighted sums, as of the chunks of the keys, are no matrices.

    Args:
        instance: the attention.
        base: the one run.
        run: another one of the same operations.
        place_of: by tag of a weighted sum, what it is of; -1 for anything else.
    """
    of, place_of = instance.run, place_of.clone()
    sums = {each.operation.index for each in instance.sums}
    for product in sorted(of.products, key=lambda each: each.operation.index):
        if product.operation.index in sums:
            continue
        for (index, number), terms in zip(product.places, (product.left_terms, product.right_terms), strict=True):
            tags = of.tags.inputs[index][number]
            if not of.owner_of(tags) & sums:
                continue
            if product.operation.name != "sum":
                yield (
                    base.operations[index].inputs[number],
                    run.operations[index].inputs[number],
                    place_of[tags.clamp(min=0)],
                )
                return
            first = of.first_tag[product.operation.index]
            place_of[first : first + len(terms)] = place_of[tags.flatten()[terms[:, 0]].clamp(min=0)]
            sums.add(product.operation.index)
            break
    for number, tags in enumerate(of.tags.returned):
        if of.owner_of(tags) & sums:
            yield base.outputs[number], run.outputs[number], place_of[tags.clamp(min=0)]
            return
