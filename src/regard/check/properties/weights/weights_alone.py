"""Attention without values: a softmax of q . k that is returned, as a map of where a query looks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.check.properties.finding import Finding
from regard.check.properties.weights.averaged_values import averaged_value
from regard.check.properties.weights.divided_values import divided_value
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import influence_of
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.roles.owners import owners
from regard.check.target import Invocation
from regard.check.trace.operation import Operation

__all__ = ["returned_weights", "weights_alone"]

MOST_TOKENS = 10_000
"""Of a stream: so that tokens of all of them can be numbered."""


def weights_alone(run: TaggedRun, invocation: Invocation) -> Iterator[Finding]:
    """What is found of scores that go through a softmax and are returned.

    Args:
        run: in which no weighted sum was found.
        invocation: the call.
    """
    mistaken = divided_value(run) or averaged_value(run)
    if mistaken is not None:
        yield mistaken
        return
    returned: set[int] = set()
    for tags in run.tags.returned:
        returned |= run.owner_of(tags)
    for scores in run.bilinear:
        if scores.operation.index not in returned:
            continue
        for operation in run.trace:
            if operation.name in SOFTMAXES and scores.operation.index in run.owner_of(
                run.tags.inputs[operation.index][0]
            ):
                if _returned_at(run, operation) is None:
                    continue
                of = "added queries and keys" if run.additive else "q . k"
                message = f"weights alone: a softmax of {of} is returned, and no values are summed by it"
                yield Finding("design", "weights-alone", "weighted sum", message, scores.operation.location)
                yield from _axis(run, invocation, scores, operation)
                return
    yield from _summed(run) if (own := _of_the_diagonal(run)) is None else (own,)


def _of_the_diagonal(run: TaggedRun) -> Finding | None:
    """Weights of which only those that a query gives its own token are multiplied by values; None of all others."""
    scores = {each.operation.index for each in run.bilinear}
    weights = [
        run.tags.outputs[each.index][0]
        for each in run.trace
        if each.name in SOFTMAXES and scores & run.owner_of(run.tags.inputs[each.index][0])
    ]
    own = torch.zeros(0, dtype=torch.long)
    for operation in run.trace:
        if operation.name == "diagonal":
            tags = run.tags.inputs[operation.index][0]
            if any(tags.shape == each.shape and bool(torch.isin(tags, each).all()) for each in weights):
                own = torch.cat((own, run.tags.outputs[operation.index][0].flatten()))
        elif operation.name == "mul" and any(
            bool(torch.isin(each, own).all()) for each in run.tags.inputs[operation.index] if each.numel() > 1
        ):
            message = (
                "only the diagonal of the weights is multiplied by the values, as where einsum's text has one letter "
                "for queries and keys: a token's own value is kept, and no other is read"
            )
            return Finding("violation", "values-summed", "weighted sum", message, operation.location)
    return None


def _summed(run: TaggedRun) -> Iterator[Finding]:
    """Weights that are summed over an axis that the softmax does not run over, and only then multiplied by values."""
    for softmax in run.trace:
        scores = {each.operation.index for each in run.bilinear}
        if softmax.name not in SOFTMAXES or not scores & run.owner_of(run.tags.inputs[softmax.index][0]):
            continue
        later = run.trace.operations[softmax.index :]
        sums = {each.outputs[0].storage for each in later if each.name == "sum" and _sums_queries(run, each, softmax)}
        for product in later:
            if (
                product.name == "mul"
                and {each.storage for each in product.inputs} & sums
                and not _is_summed(product, later)
            ):
                message = (
                    "weights are summed over the queries before they meet the values: each value is multiplied by "
                    "what it was given in all, and none is mixed with another"
                )
                yield Finding("violation", "sum-of-one-of-queries", "weighted sum", message, product.location)
                return


def _is_summed(product: Operation, later: list[Operation]) -> bool:
    """Whether an operation's results are summed afterwards: over the tokens, to pool them."""
    made = product.outputs[0].storage
    return any(each.name in ("sum", "mean") and each.inputs and each.inputs[0].storage == made for each in later)


def _sums_queries(run: TaggedRun, total: Operation, softmax: Operation) -> bool:
    """Whether an operation sums the weights of one key over several queries: the axis before that of the keys."""
    tags, axes = run.tags.outputs[softmax.index][0], total.args[1] if len(total.args) > 1 else None
    axis = int(softmax.args[1]) % tags.ndim
    if axis == 0 or not isinstance(axes, list | tuple) or len(axes) != 1:
        return False
    places = torch.full((run.num_tags + 1, tags.ndim), -1)
    places[tags.flatten()] = torch.cartesian_prod(*map(torch.arange, tags.shape)).reshape(-1, tags.ndim)
    summed = places[run.tags.inputs[total.index][0]].movedim(axes[0], 0)
    differs = (summed != summed[:1]).flatten(0, -2).any(0)
    return len(summed) > 1 and bool((summed >= 0).all()) and differs.nonzero().flatten().tolist() == [axis - 1]


def returned_weights(run: TaggedRun) -> int | None:
    """Which of the outputs holds all numbers of a softmax, as they are; None where none does."""
    for softmax in (each for each in run.trace if each.name in SOFTMAXES):
        number = _returned_at(run, softmax)
        if number is not None and run.trace.outputs[number].data.numel() == softmax.outputs[0].data.numel():
            return number
    return None


def _returned_at(run: TaggedRun, softmax: Operation) -> int | None:
    """Which of the outputs are results of a softmax as they are, not times a value."""
    weights = torch.full((run.num_tags + 1,), torch.nan, dtype=torch.float64)
    weights[run.tags.outputs[softmax.index][0].flatten()] = softmax.outputs[0].data.flatten().double()
    for number, (record, tags) in enumerate(zip(run.trace.outputs, run.tags.returned, strict=True)):
        known = (tags > 0) & ~weights[tags].isnan()
        if bool(known.any()) and torch.equal(record.data[known].double(), weights[tags][known]):
            return number
    return None


def _axis(run: TaggedRun, invocation: Invocation, scores: Contraction, softmax: Operation) -> Iterator[Finding]:
    """Whether each row of the softmax is of one query and of several keys."""
    streams = invocation.streams
    influence = influence_of(invocation, run.trace, keep=lambda source: source.kind == "token")
    if not influence.runs:
        return
    first = run.first_tag[scores.operation.index]
    moved = (run.tags.inputs[softmax.index][0] - first).movedim(int(softmax.args[1]), -1)
    rows = moved.reshape(-1, moved.shape[-1])
    rows = rows[((rows >= 0) & (rows < scores.output.data.numel())).all(-1)]
    if not len(rows):
        return  # each row is of several products
    is_constant, are_queries, are_of_tokens = list[bool](), list[bool](), list[bool]()
    for place, terms in ((scores.left_place, scores.left_terms), (scores.right_place, scores.right_terms)):
        owner = owners(
            influence.of(*place).flatten(1)[:, terms].any(-1), influence, [each.argument for each in streams]
        )
        tokens = owner.token[rows] + MOST_TOKENS * owner.stream[rows]
        are_of_tokens.append(bool((owner.token[rows] >= 0).any()))
        is_constant.append(bool((tokens == tokens[:, :1]).all()))
        roles = {streams[number].role for number in owner.stream[owner.stream >= 0].tolist()}
        are_queries.append(not roles & {"k", "context"})
    if is_constant.count(True) == 1 and are_queries[is_constant.index(True)]:
        message = "over the keys of a query"
        yield Finding("holds", "weights-sum-to-one", "weights", message, softmax.location)
        return
    if not any(are_of_tokens):
        message = "each number of the softmax is made of several tokens: which of its axes is that of keys is not told"
        yield Finding("open", "softmax-over-keys", "weights", message, softmax.location)
        return
    message = "the softmax sums to one over something else than the keys of each query"
    yield Finding("violation", "softmax-over-keys", "weights", message, softmax.location)
