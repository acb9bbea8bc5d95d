"""Attentive pooling: each channel is a weighted mean of its tokens, by weights that a network makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.weights.averaged_values import averaged_message, is_multiplied
from regard.check.roles.influence import Influence
from regard.check.roles.instances import SOFTMAXES
from regard.check.roles.owners import owners
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["deviation_findings", "pooling_findings"]

SAME = 1e-9
"""Of two means, beside the larger."""


def pooling_findings(invocation: Invocation, trace: Trace, influence: Influence) -> list[Finding]:
    """What is found of weights, each of one channel of one token, that multiply these and are summed over the tokens.

    Okabe et al. 2018, "Attentive Statistics Pooling for Deep Speaker Embedding"; the deviation is taken from the same
    weighted mean.

    Args:
        invocation: the call.
        trace: its run, in which no attention was found.
        influence: of its tokens.
    """
    streams = [each.argument for each in invocation.streams]
    for weights in trace if influence.runs else ():
        if weights.name not in SOFTMAXES or not bool(influence.of(weights.index, 0, output=True).any()):
            continue
        made = weights.outputs[0]
        for product, number in _products(trace, made):
            values = product.inputs[number]
            of = owners(influence.of(product.index, number).flatten(1), influence, streams)
            axis = _axis_of_tokens(of.token.view(values.shape))
            total = None if axis is None else _total(trace, product, axis)
            if axis is None or total is None or float((made.data.sum(axis) - 1).abs().max()) > SAME:
                continue
            design = "each channel is a weighted mean of its tokens, by weights made of these (attentive pooling)"
            return [
                Finding("design", "attentive-pooling", "scores", design, weights.location),
                Finding("holds", "softmax-over-keys", "weights", "over the tokens, sum 1", weights.location),
                *deviation_findings(trace),
            ]
        averaged = _averaged(trace, weights, influence, streams)
        if averaged is not None:
            return [averaged]
    return []


def _averaged(trace: Trace, weights: Operation, influence: Influence, streams: Sequence[str]) -> Finding | None:
    """Tokens times weights that sum to 1 over them, whose mean over the tokens is taken; None of others."""
    made = weights.outputs[0]
    for product in trace.operations[weights.index + 1 :]:
        if product.name.rstrip("_") != "mul" or len(product.inputs) != 2:
            continue
        shape = product.outputs[0].shape
        for number, (values, other) in enumerate((product.inputs, product.inputs[::-1])):
            if other.storage != made.storage or values.storage == made.storage or values.shape != shape:
                continue
            of = owners(influence.of(product.index, number).flatten(1), influence, streams)
            axis = _axis_of_tokens(of.token.view(shape))
            mean = None if axis is None else _total(trace, product, axis, "mean")
            if axis is None or mean is None or is_multiplied(trace, mean, shape[axis]):
                continue
            sums = other.data.broadcast_to(shape).sum(axis)
            if float((sums - 1).abs().max()) <= SAME:
                return Finding("violation", "weights-kept", "weights", averaged_message(shape[axis]), mean.location)
    return None


def _products(trace: Trace, weights: TensorRecord) -> Iterator[tuple[Operation, int]]:
    """Products, number by number, of all the weights and as many others; the place of the others among the inputs."""
    for operation in trace:
        if operation.name.rstrip("_") != "mul" or len(operation.inputs) != 2:
            continue
        for number, (one, other) in enumerate((operation.inputs, operation.inputs[::-1])):
            if other.storage == weights.storage != one.storage and one.shape == other.shape == weights.shape:
                yield operation, number


def _axis_of_tokens(token: Tensor) -> int | None:
    """The axis along which numbers are of one token after the other, each of one; None where there is none."""
    for axis, size in enumerate(token.shape):
        order = torch.arange(size).view([-1 if each == axis else 1 for each in range(token.ndim)])
        if size > 1 and torch.equal(token, order.expand(token.shape)):
            return axis
    return None


def _total(trace: Trace, product: Operation, axis: int, name: str = "sum") -> Operation | None:
    """What sums a product over an axis alone, or takes its mean."""
    for operation in trace.operations[product.index + 1 :]:
        taken = operation.inputs[0] if operation.name == name and operation.inputs else None
        if taken is None or taken.storage != product.outputs[0].storage or len(operation.args) < 2:
            continue
        axes = operation.args[1]
        if isinstance(axes, Sequence) and [each % taken.data.ndim for each in axes] == [axis]:
            return operation
    return None


def deviation_findings(trace: Trace) -> list[Finding]:
    """Weighted means of squares, less the square of another mean than that of the same weights.

    Args:
        trace: a run, in which a softmax makes as many weights as there are numbers of the tokens.
    """
    for weights in trace:
        for product, number in _products(trace, weights.outputs[0]) if weights.name in SOFTMAXES else ():
            storage = product.outputs[0].storage
            totals = (each for each in trace.operations[product.index :] if each.name == "sum")
            total = next((each for each in totals if each.inputs[0].storage == storage), None)
            if total is not None:
                values, mean = product.inputs[number], total.outputs[0].data
                if found := list(_deviations(trace, weights.outputs[0], values, mean)):
                    return found
    return []


def _deviations(trace: Trace, weights: TensorRecord, values: TensorRecord, mean: Tensor) -> Iterator[Finding]:
    squares = {each.outputs[0].storage: each.inputs[0] for each in trace if _is_square(each)}
    weighted = {
        product.outputs[0].storage
        for product, number in _products(trace, weights)
        if (taken := squares.get(product.inputs[number].storage)) is not None and torch.equal(taken.data, values.data)
    }
    totals = {each.outputs[0].storage for each in trace if each.name == "sum" and each.inputs[0].storage in weighted}
    for operation in trace:
        if operation.name.rstrip("_") != "sub" or len(operation.inputs) != 2:
            continue
        whole, less = operation.inputs
        if whole.storage not in totals or less.storage not in squares:
            continue
        other = squares[less.storage].data.reshape(-1)
        gap = (other - mean.reshape(-1)).abs().max() if other.numel() == mean.numel() else None
        if gap is not None and float(gap) > SAME * float(mean.abs().max()):
            message = (
                "from the weighted mean of squares the square of another mean than that of the same weights is taken "
                f"(they differ by {float(gap):.3g}): it is no variance, and may be negative"
            )
            yield Finding("violation", "variance-of-the-weights", "output", message, operation.location)
            return


def _is_square(operation: Operation) -> bool:
    if operation.name == "pow":
        return len(operation.args) == 2 and operation.args[1] == 2
    taken = operation.inputs
    return operation.name in ("mul", "square") and len({each.storage for each in taken}) == 1 and bool(taken)
