"""Additive scores: w . f(q + k), a query and a key added in every pair, as by Bahdanau."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.roles.contractions import MATRICES, Contraction
from regard.check.roles.influence import Influence
from regard.check.roles.recurrences import recurrent_outputs
from regard.check.roles.tags import TaggedTrace
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = [
    "additive_scores",
    "concatenated_scores",
    "concatenations",
    "pairwise_products",
    "pairwise_sums",
    "scores_of_parts",
]

SUMS = frozenset({"add", "sub"})
SAME = 1e-12
"""Of the largest number of a tensor: a matrix may round its copies differently."""
GATHERS = frozenset({"index", "gather", "index_select", "im2col"})
REPEATS = frozenset({"repeat", "repeat_interleave"})


def pairwise_products(influence: Influence) -> Iterator[Operation]:
    """The same of products that are not summed, also with keys of windows that overlap, or that were made of such."""
    trace = influence.base
    views = [each for each in trace if any(map(_overlaps, each.inputs)) or each.name in GATHERS]
    gathered = trace.made_of(one.storage for each in views for one in each.outputs if not each.is_view)
    yield from _pairwise(influence, {"mul"}, gathered)


def _overlaps(record: TensorRecord) -> bool:
    """Whether several of its numbers lie at one place in memory, as those of windows."""
    span = 1 + sum((size - 1) * step for size, step in zip(record.shape, record.stride, strict=True))
    return 0 not in record.stride and record.data.numel() > span


def pairwise_sums(influence: Influence) -> Iterator[Operation]:
    """The sums in which each number of one tensor meets each of another one, both made of the inputs.

    Of a single query, the keys are as many as the pairs: then each of the two is made of an input of its own, or by a
    matrix of its own, as of a decoder's state, which is made of the keys' tokens as well. So are keys that were
    gathered for each query, as nearest neighbours, and queries and keys that were repeated, also where all pairs stand
    on one axis.
    """
    yield from _pairwise(influence, SUMS, _repeated(influence.base) | set(_spread(influence)))


def _repeated(trace: Trace) -> set[int]:
    """The memory of what holds some numbers several times."""
    return {
        each.outputs[0].storage
        for each in trace
        if (each.name in GATHERS | REPEATS and each.inputs[0].data.numel() < each.outputs[0].data.numel())
        or (each.name == "clone" and 0 in each.inputs[0].stride)
    }


def _spread(influence: Influence) -> Iterator[int]:
    """Where a query stands once for each key as something that is made of no input was added to it for each.

    As what was read of the weights of the steps before (Chorowski et al. 2015, section 2.1).
    """
    for each in influence.base:
        if each.name != "add" or len(each.inputs) != 2:
            continue
        whole = math.prod(each.outputs[0].shape)
        for number, one in enumerate(each.inputs):
            is_smaller = math.prod(one.shape) < whole and _streams_of(influence, each.index, number)
            if is_smaller and not _streams_of(influence, each.index, 1 - number):
                yield each.outputs[0].storage


def _is_of_projections(trace: Trace, operation: Operation) -> bool:
    """Whether it adds what two matrices made, and one operation takes the sum: a score's, not a token's new vector."""
    made = set[int]()
    for each in trace.operations[: operation.index]:
        is_biased = each.name == "add" and any(one.learned for one in each.inputs)
        if each.name in MATRICES or (is_biased and any(one.storage in made for one in each.inputs)):
            made.add(each.outputs[0].storage)
    total = operation.outputs[0].storage
    taken = [each for each in trace if not each.is_view and any(one.storage == total for one in each.inputs)]
    return len(taken) == 1 and all(each.storage in made for each in operation.inputs)


def _is_written_out(data: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is as large as a result, and the same all along an axis: a query that stands once for each key.

    As of expand or repeat, or what a matrix made of such: it is what broadcasting does without them. Or, of rows, the
    same in each of several groups of as many: those of a sample, of which all have one axis.
    """
    if tuple(data.shape) != tuple(shape) or not data.is_floating_point():
        return False
    most = SAME * float(data.abs().max()) if data.numel() else 0.0
    rows = data.shape[0] if data.ndim == len("rd") else 0
    grouped = [data.reshape(rows // size, size, -1) for size in range(2, rows) if rows % size == 0]
    several = [(data, axis) for axis in range(data.ndim)] + [(each, axis) for each in grouped for axis in (0, 1)]
    return any(
        each.shape[axis] > 1 and float((each - each.narrow(axis, 0, 1)).abs().max()) <= most for each, axis in several
    )


def _pairwise(influence: Influence, names: Collection[str], gathered: set[int]) -> Iterator[Operation]:
    trace = influence.base
    for operation in trace:
        if operation.name not in names or len(operation.inputs) != 2:
            continue
        size = math.prod(operation.outputs[0].shape)
        is_repeated = [
            math.prod(each.shape) < size
            or each.storage in gathered
            or (names is SUMS and _is_written_out(each.data, operation.outputs[0].shape))
            for each in operation.inputs
        ]
        if not any(is_repeated):
            continue
        one, other = (_streams_of(influence, operation.index, number) for number in (0, 1))
        if not one or not other:
            continue
        if all(is_repeated) or not one & other or _is_of_projections(trace, operation):
            yield operation


def concatenations(influence: Influence, products: Iterable[Contraction]) -> Iterator[Contraction]:
    """Sums of queries and keys that are written as one product, of both side by side and a matrix.

    Each factor is the terms of one side, as many of both: of the fewer ones the last is repeated. The states of a
    recurrent layer that reads from both ends stand side by side as well, and are of one token.
    """
    trace = influence.base
    rows = recurrent_outputs(trace)
    states = {trace.operations[index].outputs[0].storage for index in rows}
    repeated = trace.made_of(_repeated(trace))
    beside = {
        each.outputs[0].storage: each
        for each in trace
        if each.name == "cat" and each.index not in rows and not states.issuperset(one.storage for one in each.inputs)
        if _are_of_pairs(each, repeated)
    }
    for product in products:
        for place, terms, side in (
            (product.left_place, product.left_terms, product.left),
            (product.right_place, product.right_terms, product.right),
        ):
            joined = beside.get(side.storage)
            if joined is None or side.data.numel() != joined.outputs[0].data.numel():
                continue
            numbers = _sides(joined)
            of_tokens = (bool(influence.of(joined.index, at).any()) for at in range(len(numbers)))
            if {number for number, is_of_tokens in zip(numbers, of_tokens, strict=True) if is_of_tokens} != {0, 1}:
                continue
            sides = [torch.full(each.shape, number) for number, each in zip(numbers, joined.inputs, strict=True)]
            axis = joined.args[1] if len(joined.args) > 1 else 0
            columns = torch.cat(sides, axis).flatten()[terms]  # (elements, terms)
            found = [(columns[0] == number).nonzero().flatten() for number in (0, 1)]
            if not all(map(len, found)) or not bool((columns == columns[:1]).all()):
                continue
            most = torch.arange(max(map(len, found)))
            one, other = (terms[:, each[most.clamp(max=len(each) - 1)]] for each in found)
            yield Contraction(product.operation, side, side, place, place, one, other)


def _are_of_pairs(joined: Operation, repeated: Collection[int]) -> bool:
    """Whether something that stands side by side stands there several times, as a query for each of its keys.

    Else each row is of a key alone, as of keys beside their products with a question, by which they are scored (HCRN,
    arXiv:2002.10698, equation 7).
    """
    return any(each.storage in repeated or _is_written_out(each.data, tuple(each.shape)) for each in joined.inputs)


def _sides(joined: Operation) -> list[int]:
    """Which of the two sides each input of a join is of; of more than two those that stand once for each key are one.

    As a state beside the features of each key, which were handed over in several parts.
    """
    if len(joined.inputs) == len("qk"):
        return [0, 1]
    return [int(_is_written_out(each.data, tuple(each.shape))) for each in joined.inputs]


def _streams_of(influence: Influence, operation: int, number: int) -> set[str]:
    """The inputs that a tensor which an operation takes is made of."""
    depends = influence.of(operation, number).unsqueeze(-1).flatten(1).any(1)
    return {source.stream for (source, _), made in zip(influence.runs, depends.tolist(), strict=True) if made}


def additive_scores(
    sums: Iterable[Operation],
    products: Iterable[Contraction],
    tags: TaggedTrace,
    first: Mapping[int, int],
    depends: set[tuple[int, int]],
) -> Iterator[Contraction]:
    """Scores of added queries and keys, as if these were their factors: so that it is known whose they are.

    Args:
        sums: of queries and keys.
        products: all products of the run.
        tags: of the run, with the elements of the sums.
        first: by the index of a sum, the tag of its first number.
        depends: the factors that depend on the inputs.
    """
    of_sums = list(sums)
    layers: list[Contraction] = []  # each of one pair's numbers, by learned vectors: those of a perceptron of q + k
    for product in products:
        if (product.left_place in depends) == (product.right_place in depends):
            continue
        is_left = product.left_place in depends
        operation, number = product.left_place if is_left else product.right_place
        found = tags.inputs[operation][number].flatten()[product.left_terms if is_left else product.right_terms]
        made = next(
            (_of_sum(product, each, found - first[each.index]) for each in of_sums if _are_of(found, each, first)), None
        )
        if made is None:
            before = next((each for each in layers if _are_of(found, each.operation, first)), None)
            made = None if before is None else _of_layer(product, before, found - first[before.operation.index])
        if made is not None:
            layers.append(made)
            yield made


def _are_of(found: Tensor, operation: Operation, first: Mapping[int, int]) -> bool:
    """Whether all of some tags are of the numbers of one operation."""
    start = first[operation.index]
    return bool(((found >= start) & (found < start + operation.outputs[0].data.numel())).all())


def _of_sum(product: Contraction, added: Operation, places: Tensor) -> Contraction:
    """A product of the numbers of a sum, as one of what is added.

    Args:
        product: the product.
        added: the sum.
        places: (elements, terms): which of its numbers are taken.
    """
    shape, (left, right) = added.outputs[0].data.shape, added.inputs
    left_terms, right_terms = (
        torch.arange(side.data.numel()).reshape(side.data.shape).expand(shape).flatten()[places]
        for side in (left, right)
    )
    sides = (added.index, 0), (added.index, 1)
    return Contraction(product.operation, left, right, *sides, left_terms, right_terms)


def _of_layer(product: Contraction, before: Contraction, places: Tensor) -> Contraction | None:
    """The same of the numbers of an earlier product, where those of each score are of one pair; else None."""
    left, right = (terms[places] for terms in (before.left_terms, before.right_terms))  # (elements, terms, channels)
    if not all(bool((each == each[:, :1]).all()) for each in (left, right)):
        return None
    return replace(before, operation=product.operation, left_terms=left[:, 0], right_terms=right[:, 0])


def concatenated_scores(
    joined: Iterable[Contraction],
    products: Iterable[Contraction],
    trace: Trace,
    tags: TaggedTrace,
    first: Mapping[int, int],
) -> Iterator[Contraction]:
    """The same of queries and keys side by side: one product, or a vector times a function of it; see there.

    Args:
        joined: the products of both, from `concatenations`.
        products: all products of the run.
        trace: of the run.
        tags: of the run, with the elements of the products.
        first: by the index of a product, the tag of its first number.
    """
    of_both = list(joined)
    if not of_both:
        return
    for product in products:
        if not _are_taken(product.operation, trace, tags, first):
            continue
        for one in of_both:
            if one.operation is product.operation:
                yield one
                break
            factors = (product.left_place, product.left_terms), (product.right_place, product.right_terms)
            found = [
                tags.inputs[at][number].flatten()[terms] - first[one.operation.index] for (at, number), terms in factors
            ]
            of_one = [each for each in found if bool(((each >= 0) & (each < one.output.data.numel())).all())]
            if of_one:
                places = of_one[0][:, 0]
                left, right = one.left_terms[places], one.right_terms[places]
                yield replace(one, operation=product.operation, left_terms=left, right_terms=right)
                break


def _are_taken(made: Operation, trace: Trace, tags: TaggedTrace, first: Mapping[int, int]) -> bool:
    """Whether a softmax takes the numbers of an operation, or what was made of them one by one."""
    start, end = first[made.index], first[made.index] + made.outputs[0].data.numel()
    taken = [tags.inputs[each.index][0] for each in trace if each.name in ("_softmax", "_safe_softmax", "exp")]
    return any(bool(((found >= start) & (found < end)).any()) for found in taken)


def scores_of_parts(
    sums: Iterable[Operation], trace: Trace, tags: TaggedTrace, first: Mapping[int, int]
) -> Iterator[Contraction]:
    """Scores that are sums of one number of a query and one of a key, as in graph attention; see `additive_scores`.

    Args:
        sums: of queries and keys.
        trace: of the run.
        tags: of the run, with the elements of the sums.
        first: by the index of a sum, the tag of its first number.
    """
    for each in sums:
        if _are_taken(each, trace, tags, first):
            shape, (left, right) = each.outputs[0].data.shape, each.inputs
            terms = [
                torch.arange(side.data.numel()).reshape(side.data.shape).expand(shape).reshape(-1, 1)
                for side in (left, right)
            ]
            yield Contraction(each, left, right, (each.index, 0), (each.index, 1), *terms)
