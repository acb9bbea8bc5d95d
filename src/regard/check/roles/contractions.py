"""Products of two tensors summed over an axis, in all their spellings, as lists of terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["Contraction", "contractions", "has_too_many_terms", "of_its_transpose", "without_lengths"]

MAX_TERMS = 1 << 21
"""Of one product."""


@dataclass(frozen=True, eq=False)
class Contraction:
    """out[e] is the sum over n of left[e, n] * right[e, n]."""

    operation: Operation
    """The one whose first output holds the sums."""
    left: TensorRecord
    right: TensorRecord
    left_place: tuple[int, int]
    """The operation that takes the left factor, and the number of it among its tensors."""
    right_place: tuple[int, int]
    left_terms: Tensor
    """(elements of the output, terms): which element of the left factor, flat."""
    right_terms: Tensor

    @property
    def places(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of the left factor, and of the right one."""
        return self.left_place, self.right_place

    @property
    def output(self) -> TensorRecord:
        """The sums."""
        return self.operation.outputs[0]


def without_lengths(products: Sequence[Contraction]) -> list[Contraction]:
    """The products but those of vectors with themselves, where others multiply all of these vectors by one another.

    In the squared distance |q - k|^2 = q . q + k . k - 2 q . k only the last one is a score.

    Args:
        products: of a run.
    """
    lengths = [each for each in products if _is_squared_length(each)]
    if not lengths:
        return [*products]
    others = [each for each in products if each not in lengths]
    taken = {numbers for each in others for numbers in _numbers(each)}
    return [each for each in products if each not in lengths or _numbers(each)[0] not in taken]


def of_its_transpose(product: Contraction, taken: Sequence[Sequence[Tensor]]) -> bool:
    """Whether a matrix is multiplied by its own transpose: weights that are held against one another read no value.

    As A A^T of the penalty by which several queries are to read different tokens (Lin et al. 2017, equation 8).

    Args:
        product: of a run.
        taken: by operation, by tensor argument, the tags of the elements that it takes.
    """
    one, two = (taken[operation][number] for operation, number in product.places)
    return one.ndim == two.ndim > 1 and one.shape == two.mT.shape and bool((one > 0).all()) and torch.equal(one, two.mT)


def _is_squared_length(product: Contraction) -> bool:
    one, two = (each.data.flatten() for each in (product.left, product.right))
    is_same = product.left_terms.shape == product.right_terms.shape and one.shape == two.shape
    return is_same and torch.equal(one[product.left_terms], two[product.right_terms])


def _numbers(product: Contraction) -> list[bytes]:
    """The numbers of each factor that are multiplied, in the order of their size."""
    sides = ((product.left, product.left_terms), (product.right, product.right_terms))
    return [torch.unique(record.data.flatten()[terms]).numpy().tobytes() for record, terms in sides]


def contractions(trace: Trace) -> Iterator[Contraction]:
    """Every product of a run that is summed over an axis."""
    products: dict[int, Operation] = {}  # by storage: elementwise products that a sum may follow
    for operation in trace:
        if operation.name in MATRICES:
            found = _matrix_product(operation)
            if found is not None:
                yield found
        elif operation.name == "mul" and len(operation.inputs) == 2 and operation.outputs[0].data.ndim:
            products[operation.outputs[0].storage] = operation
        elif operation.name == "sum" and operation.inputs and operation.inputs[0].storage in products:
            found = _sum_of_products(products[operation.inputs[0].storage], operation)
            if found is not None:
                yield found
        elif operation.name.rstrip("_") in SCATTERS and operation.inputs[2].storage in products:
            found = _scattered_products(products[operation.inputs[2].storage], operation)
            if found is not None:
                yield found


SCATTERS = frozenset({"index_add", "scatter_add"})
"""Sums of what stands at several places, such as the messages of edges, at those that an index says."""
MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "mv": 0, "addmv": 1, "dot": 0}
"""Products of matrices, and the number of the first factor among their tensors."""


def has_too_many_terms(operation: Operation) -> bool:
    """Whether it is a product of matrices with more terms than are followed."""
    if operation.name not in MATRICES:
        return False
    return operation.outputs[0].data.numel() * operation.inputs[MATRICES[operation.name]].shape[-1] > MAX_TERMS


def _matrix_product(operation: Operation) -> Contraction | None:
    first = MATRICES[operation.name]
    left, right = operation.inputs[first : first + 2]
    a, b = _numbered(left), _numbered(right)
    if operation.name in ("mv", "addmv", "dot"):
        b = b[:, None]
    if operation.name == "dot":
        a = a[None]
    count, terms = operation.outputs[0].data.numel(), a.shape[-1]
    if has_too_many_terms(operation) or not terms:
        return None
    rows, columns = a.shape[-2], b.shape[-1]
    a_terms = a[..., :, None, :].expand(*a.shape[:-2], rows, columns, terms).reshape(count, terms)
    b_terms = b.transpose(-1, -2)[..., None, :, :].expand(*a.shape[:-2], rows, columns, terms).reshape(count, terms)
    places = (operation.index, first), (operation.index, first + 1)
    return Contraction(operation, left, right, *places, a_terms, b_terms)


def _sum_of_products(product: Operation, total: Operation) -> Contraction | None:
    left, right = product.inputs
    shape = product.outputs[0].data.shape
    if total.inputs[0].data.shape != shape or left.data.numel() == 1 or right.data.numel() == 1:
        return None
    axes = total.args[1] if len(total.args) > 1 else total.kwargs.get("dim")
    if axes is None or len(axes) != 1 or product.outputs[0].data.numel() > MAX_TERMS:
        return None
    terms = []
    for each in (left, right):
        spread = _numbered(each).broadcast_to(shape).movedim(axes[0], -1)
        terms.append(spread.reshape(-1, spread.shape[-1]))
    return Contraction(total, left, right, (product.index, 0), (product.index, 1), *terms)


def _scattered_products(product: Operation, total: Operation) -> Contraction | None:
    """Of products that are added to zeros, as many at each place; None of others."""
    into, index, source = (each.data for each in total.inputs[:3])
    axis, shape = int(total.args[1]), product.outputs[0].data.shape
    if source.shape != shape or not source.ndim or bool(into.any()) or source.numel() > MAX_TERMS:
        return None
    axis %= source.ndim
    places = index if index.ndim == 1 else index.movedim(axis, -1).reshape(-1, index.shape[axis])
    if places.ndim > 1:
        if bool((places != places[:1]).any()):
            return None
        places = places[0]
    counts = places.bincount(minlength=into.shape[axis])
    count = int(counts[0])
    if count < 2 or len(places) != shape[axis] or bool((counts != count).any()):
        return None
    order, terms = places.argsort(stable=True).view(-1, count), []
    for each in product.inputs:
        spread = _numbered(each).broadcast_to(shape).movedim(axis, 0)[order]  # (places, terms, others)
        terms.append(spread.movedim(1, -1).movedim(0, axis).reshape(-1, count))
    left, right = product.inputs
    return Contraction(total, left, right, (product.index, 0), (product.index, 1), *terms)


def _numbered(record: TensorRecord) -> Tensor:
    return torch.arange(record.data.numel()).reshape(record.shape)
