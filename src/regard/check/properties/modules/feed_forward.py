"""Feed-forward networks: between the two matrices of a token stands a function that is not linear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regard.check.properties.finding import Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["feed_forward_findings", "is_of_one_place"]

LINEAR = frozenset({"add", "sub", "neg", "clone", "_unsafe_view", "native_dropout"})
"""Operations that leave a linear function of a token what it is; a product or a quotient with a number does as well."""


def feed_forward_findings(run: TaggedRun) -> Iterator[Finding]:
    """Two learned matrices in a row, the first to more channels and the second back, with nothing that bends between.

    Vaswani et al. 2017, "Attention Is All You Need", equation 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2. A matrix may
    be written as a convolution of one place at a time. What something beside the second matrix reads is no hidden
    vector of such a network, as the first state of a decoder, of which a gate is made; nor is what the output matrix of
    an attention returns.
    """
    several = [*_matrices(run)]
    read = {each.operation.outputs[0].storage for each in run.bilinear}
    by_output = {each.operation.outputs[0].storage: each for each in several}
    for second in several:
        made = _made_linearly(run.trace, second.operation.index, second.given, by_output)
        if made is None or _is_read_elsewhere(run.trace, made, second):
            continue
        first = made.matrix
        if run.trace.originals().get(first.given.storage, first.given.storage) in read:
            continue
        widths = [*first.widths, second.widths[1]]
        if widths[0] == widths[2] < widths[1] and second.operation.index not in _of_attention(run):
            message = (
                f"between the matrices of {widths[0]} to {widths[1]} channels and back stands no activation: both "
                "together are one matrix"
            )
            yield Finding("violation", "feed-forward-bends", "block", message, second.operation.location)
            return


@dataclass(frozen=True)
class _Matrix:
    """A learned matrix in a run."""

    operation: Operation
    given: TensorRecord
    """What it is multiplied by."""
    widths: tuple[int, int]
    """The channels that it takes, and returns."""


@dataclass(frozen=True)
class _Made:
    """What is a linear function of the output of a matrix."""

    matrix: _Matrix
    by: tuple[Operation, ...]
    """The operations that made it of that output."""


def _matrices(run: TaggedRun) -> Iterator[_Matrix]:
    for product in run.products:
        given = _by_a_matrix(run, product)
        if given is not None:
            yield _Matrix(product.operation, given, (given.shape[-1], product.operation.outputs[0].shape[-1]))
    for operation in run.trace:
        if is_of_one_place(operation):
            given, output = operation.inputs[0], operation.outputs[0]
            yield _Matrix(operation, given, (given.shape[1], output.shape[1]))


def is_of_one_place(operation: Operation) -> bool:
    """Whether an operation is a learned convolution of one place at a time: a matrix of its channels."""
    if operation.name != "convolution" or operation.args[-1] != 1:
        return False
    given, weight = operation.inputs[:2]
    is_one = all(size == 1 for size in weight.shape[2:])
    return is_one and weight.learned and given.shape[2:] == operation.outputs[0].shape[2:]


def _of_attention(run: TaggedRun) -> set[int]:
    """Products that a softmax takes, or a product of two things: two matrices may stand there for one of less rank."""
    takers = {each.operation.index for each in run.bilinear}
    takers |= {each.index for each in run.trace if each.name in SOFTMAXES}
    return set().union(*(run.taken[index] for index in takers))


def _by_a_matrix(run: TaggedRun, product: Contraction) -> TensorRecord | None:
    """What a matrix that hangs on no input is multiplied by; None where neither factor is one, or both are."""
    is_left, is_right = (place in run.depends for place in product.places)
    if is_left == is_right:
        return None
    matrix, other = (product.right, product.left) if is_left else (product.left, product.right)
    return other if matrix.learned and matrix.data.ndim == 2 else None


def _made_linearly(trace: Trace, index: int, record: TensorRecord, products: dict[int, _Matrix]) -> _Made | None:
    """The matrix of whose output a tensor is a linear function, one that changes no token's numbers for another's."""
    storages, by = {record.storage}, list[Operation]()
    for operation in reversed(trace.operations[:index]):
        is_view = operation.is_view and not operation.written  # an activation may be written in place
        if is_view or not {each.storage for each in operation.outputs[:1]} & storages:
            continue
        found = products.get(operation.outputs[0].storage)
        if found is not None and found.operation is operation:
            return _Made(found, tuple(by))
        if not operation.inputs or not _is_linear(operation):
            return None
        by.append(operation)
        storages = {operation.inputs[0].storage}
    return None


def _is_read_elsewhere(trace: Trace, made: _Made, second: _Matrix) -> bool:
    """Whether an operation beside the second matrix takes a vector between the two, or the call returns it."""
    known = {made.matrix.operation.index, second.operation.index, *(each.index for each in made.by)}
    between = {each.outputs[0].storage for each in (made.matrix.operation, *made.by)}
    takers = (
        each
        for each in trace.operations[made.matrix.operation.index :]
        if each.index not in known and (not each.is_view or each.written)  # keys and values may be kept in a cache
    )
    read = {each.storage for taker in takers for each in taker.inputs}
    return bool(between & (read | {each.storage for each in trace.outputs}))


def _is_linear(operation: Operation) -> bool:
    name, others = operation.name.rstrip("_"), operation.inputs[1:]
    if not all(each.data.numel() == 1 or (each.learned and each.data.ndim == 1) for each in others):
        return False
    return name in LINEAR or (name in ("mul", "div") and all(each.data.numel() == 1 for each in others))
