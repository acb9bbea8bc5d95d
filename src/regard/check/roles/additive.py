"""Additive scores: w . f(q + k), a query and a key added in every pair, as by Bahdanau."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch

from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import Influence
from regard.check.roles.tags import TaggedTrace
from regard.check.trace.operation import Operation, Trace

__all__ = ["additive_scores", "pairwise_sums", "scores_of_parts"]


def pairwise_sums(influence: Influence) -> Iterator[Operation]:
    """The sums in which each number of one tensor meets each of another one, both made of the inputs.

    Of a single query, the keys are as many as the pairs: then each of the two is made of an input of its own.
    """
    for operation in influence.base:
        if operation.name not in ("add", "sub") or len(operation.inputs) != 2:
            continue
        size = math.prod(operation.outputs[0].shape)
        is_repeated = [math.prod(each.shape) < size for each in operation.inputs]
        if not any(is_repeated):
            continue
        one, other = (_streams_of(influence, operation.index, number) for number in (0, 1))
        if one and other and (all(is_repeated) or not one & other):
            yield operation


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
    known = list(sums)
    for product in products:
        if (product.left_place in depends) == (product.right_place in depends):
            continue
        is_left = product.left_place in depends
        operation, number = product.left_place if is_left else product.right_place
        found = tags.inputs[operation][number].flatten()[product.left_terms if is_left else product.right_terms]
        for each in known:
            places = found - first[each.index]
            if not bool(((places >= 0) & (places < each.outputs[0].data.numel())).all()):
                continue
            shape = each.outputs[0].data.shape
            left, right = each.inputs
            left_terms, right_terms = (
                torch.arange(side.data.numel()).reshape(side.data.shape).expand(shape).flatten()[places]
                for side in (left, right)
            )
            sides = (each.index, 0), (each.index, 1)
            yield Contraction(product.operation, left, right, *sides, left_terms, right_terms)
            break


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
    taken = [tags.inputs[each.index][0] for each in trace if each.name in ("_softmax", "_safe_softmax")]
    for each in sums:
        count = each.outputs[0].data.numel()
        if any(bool(((found >= first[each.index]) & (found < first[each.index] + count)).any()) for found in taken):
            shape, (left, right) = each.outputs[0].data.shape, each.inputs
            terms = [
                torch.arange(side.data.numel()).reshape(side.data.shape).expand(shape).reshape(-1, 1)
                for side in (left, right)
            ]
            yield Contraction(each, left, right, (each.index, 0), (each.index, 1), *terms)
