"""Products over the heads: "talking heads" mix the scores, or the weights, of the same two tokens in all heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from regard.check.roles.contractions import Contraction
from regard.check.trace.operation import Operation, Trace

__all__ = ["mixed_heads", "mixing_products"]


def mixing_products(
    trace: Trace, products: Iterable[Contraction], depends: set[tuple[int, int]]
) -> Iterator[Contraction]:
    """The products that may mix heads: their left factor depends on the inputs, the other one does not.

    Args:
        trace: the run.
        products: all of it.
        depends: the factors that depend on the inputs.
    """
    for each in products:
        if (each.left_place in depends) != (each.right_place in depends):
            yield each if each.left_place in depends else _turned(each)
    for operation in trace:
        found = _pointwise(operation)
        if found is not None:
            yield found


def mixed_heads(product: Contraction, tags: Tensor, first: int, shape: tuple[int, ...]) -> Tensor | None:
    """The tags of what a product over the heads returns: head h of the mixture goes on as head h of the scores.

    Args:
        product: with the scores, or the weights made of them, on its left.
        tags: of its left factor.
        first: the tag of the first score.
        shape: of the scores; its last two axes are one head of one sample.

    Returns:
        (numbers), flat; None where it does not mix heads: where its terms are not of the same place in several heads.
    """
    terms = tags.flatten()[product.left_terms]
    count = terms.shape[-1]
    live = (terms > 0).any(-1)
    if count < 2 or not bool(live.any()) or bool((terms[live] == 0).any()):
        return None
    places, heads = (terms[live] - first) % (shape[-2] * shape[-1]), (terms[live] - first) // (shape[-2] * shape[-1])
    if bool((places != places[:, :1]).any()) or bool((heads[:, 1:] == heads[:, :-1]).any()):
        return None
    _, group = torch.unique(terms[live][:, 0], return_inverse=True)
    order = group.argsort(stable=True)
    sizes = torch.bincount(group)
    if not bool((sizes == count).all()):
        return None  # as many heads as before
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group)) % count
    found = torch.zeros(len(terms), dtype=torch.long)
    found[live] = terms[live].gather(1, rank[:, None])[:, 0]
    return found


def _turned(product: Contraction) -> Contraction:
    return Contraction(
        product.operation,
        product.right,
        product.left,
        product.right_place,
        product.left_place,
        product.right_terms,
        product.left_terms,
    )


def _pointwise(operation: Operation) -> Contraction | None:
    """A convolution of single places as a product over the channels."""
    if operation.name != "convolution" or operation.args[-1] != 1:
        return None
    given, weight = operation.inputs[:2]
    output = operation.outputs[0]
    if any(size != 1 for size in weight.shape[2:]) or given.shape[2:] != output.shape[2:]:
        return None
    numbers = torch.arange(given.data.numel()).reshape(given.shape).movedim(1, -1)[:, None]
    terms = numbers.expand(output.shape[0], output.shape[1], *numbers.shape[2:]).reshape(-1, given.shape[1])
    matrix = torch.arange(weight.data.numel()).reshape(1, output.shape[1], *[1] * (given.data.ndim - 2), -1)
    rows = matrix.expand(*output.shape, given.shape[1]).reshape(-1, given.shape[1])
    return Contraction(operation, given, weight, (operation.index, 0), (operation.index, 1), terms, rows)
