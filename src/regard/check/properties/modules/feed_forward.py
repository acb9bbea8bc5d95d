"""Feed-forward networks: between the two matrices of a token stands a function that is not linear."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.roles.contractions import Contraction
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["feed_forward_findings"]

LINEAR = frozenset({"add", "sub", "neg", "clone", "_unsafe_view", "native_dropout"})
"""Operations that leave a linear function of a token what it is; a product or a quotient with a number does as well."""


def feed_forward_findings(run: TaggedRun) -> Iterator[Finding]:
    """Two learned matrices in a row, the first to more channels and the second back, with nothing that bends between.

    Vaswani et al. 2017, "Attention Is All You Need", equation 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2.
    """
    by_output = {
        each.operation.outputs[0].storage: each for each in run.products if _by_a_matrix(run, each) is not None
    }
    for second in run.products:
        given = _by_a_matrix(run, second)
        first = None if given is None else _made_linearly(run.trace, second.operation.index, given, by_output)
        if first is None:
            continue
        before = _by_a_matrix(run, first)
        assert before is not None
        widths = [before.shape[-1], first.operation.outputs[0].shape[-1], second.operation.outputs[0].shape[-1]]
        if widths[0] == widths[2] < widths[1] and second.operation.index not in _of_attention(run):
            message = (
                f"between the matrices of {widths[0]} to {widths[1]} channels and back stands no activation: both "
                "together are one matrix"
            )
            yield Finding("violation", "feed-forward-bends", "block", message, second.operation.location)
            return


def _of_attention(run: TaggedRun) -> set[int]:
    """Products that a softmax takes, or a product of two things: two matrices may stand there for one of less rank."""
    takers = {each.operation.index for each in run.bilinear}
    takers |= {each.index for each in run.trace if each.name in SOFTMAXES}
    return set().union(*(run.taken[index] for index in takers))


def _by_a_matrix(run: TaggedRun, product: Contraction) -> TensorRecord | None:
    """What a matrix that hangs on no input is multiplied by; None where neither factor is one, or both are."""
    is_left, is_right = (place in run.depends for place in (product.left_place, product.right_place))
    if is_left == is_right:
        return None
    matrix, other = (product.right, product.left) if is_left else (product.left, product.right)
    return other if matrix.learned and matrix.data.ndim == 2 else None


def _made_linearly(
    trace: Trace, index: int, record: TensorRecord, products: dict[int, Contraction]
) -> Contraction | None:
    """The product that a tensor is a linear function of, one that changes no token's numbers for another's."""
    storages = {record.storage}
    for operation in reversed(trace.operations[:index]):
        is_view = operation.is_view and not operation.written  # an activation may be written in place
        if is_view or not {each.storage for each in operation.outputs[:1]} & storages:
            continue
        found = products.get(operation.outputs[0].storage)
        if found is not None and found.operation is operation:
            return found
        if not operation.inputs or not _is_linear(operation):
            return None
        storages = {operation.inputs[0].storage}
    return None


def _is_linear(operation: Operation) -> bool:
    name, others = operation.name.rstrip("_"), operation.inputs[1:]
    if not all(each.data.numel() == 1 or (each.learned and each.data.ndim == 1) for each in others):
        return False
    return name in LINEAR or (name in ("mul", "div") and all(each.data.numel() == 1 for each in others))
