"""Attention without products of queries and keys: weights are exponentials of keys and of biases of two places.

Zhai et al. 2021, "An Attention Free Transformer" (arXiv:2105.14103), section 3: the mean of the values of each channel
by the weights exp(k + w), over the sum of these weights, times a gate that the query makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.influence import stream_sizes
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, TensorRecord, Trace, axis_of

__all__ = ["attention_free_findings"]

MATRIX_PRODUCTS = {"mm", "bmm"}
SAME = 1e-3
"""A constant that avoids a division by zero moves a sum by less."""


def attention_free_findings(invocation: Invocation, trace: Trace) -> Iterator[Finding]:
    """What is found of sums of values over the tokens, times exponentials, that are divided by sums of exponentials.

    Args:
        invocation: the call.
        trace: its run, in which no attention was found.
    """
    tokens = {stream_sizes(invocation, each)[1] for each in invocation.streams}
    given = {each.argument for each in invocation.streams} & trace.arguments.keys()  # arrays are none
    read = trace.made_of({trace.arguments[each].storage for each in given})
    for division, makers in _divisions(trace):
        weights = _weights(division, makers, tokens) or _weights_by_matrices(division, makers, tokens)
        if weights is None or not any(each.storage in read for each in weights[0].inputs):
            continue
        exponentials, sums = weights
        line = exponentials.location
        if float((sums - 1).abs().max()) > SAME:
            message = (
                "values are summed by exponentials of the keys, and divided by another sum than that of these: the "
                f"weights of a query sum to {float(sums.min()):.4g} to {float(sums.max()):.4g}, not to 1"
            )
            yield Finding("violation", "weights-sum-to-one", "weights", message, division.location)
            return
        message = (
            "each channel is a mean of the values by exponentials of the keys: no query is multiplied by a key "
            "(attention free transformer)"
        )
        yield Finding("design", "attention-free", "scores", message, line)
        yield Finding("holds", "weights-sum-to-one", "weights", "over the keys of a query: sum 1", line)
        return


def _divisions(trace: Trace) -> Iterator[tuple[Operation, Mapping[int, Operation]]]:
    """Divisions of one sum by another, and what has made the memory of each tensor until then."""
    makers: dict[int, Operation] = {}
    for operation in trace:
        if operation.name.rstrip("_") == "div" and len(operation.inputs) == 2:
            yield operation, makers
        if operation.outputs and not (operation.is_view and not operation.is_in_place):
            makers[operation.outputs[0].storage] = operation


def _weights(division: Operation, makers: Mapping[int, Operation], tokens: set[int]) -> tuple[Operation, Tensor] | None:
    """What computes the exponentials that a sum over the tokens is weighted by, and their sums; None of others."""
    above, below = (_made_by(each, makers, "sum") for each in division.inputs)
    product = None if above is None else _made_by(above.inputs[0], makers, "mul")
    if above is None or below is None or product is None or len(product.inputs) != 2:
        return None
    axis = axis_of(above.function, above.args, above.kwargs)
    axes: list[int] = [axis] if isinstance(axis, int) else list(axis or ())
    shape = product.outputs[0].shape
    if len(axes) != 1 or above.inputs[0].shape != shape or shape[axes[0]] not in tokens:
        return None
    if _made_by(below.inputs[0], makers, "exp") is None:
        return None
    for factor in product.inputs:
        exponentials = _made_by(factor, makers, "exp")
        if exponentials is None or exponentials.outputs[0].data.numel() != factor.data.numel():
            continue
        total = factor.data.broadcast_to(shape).sum(axes[0]).reshape(division.inputs[0].shape)
        under = division.inputs[1].data
        sums = total / torch.where(under == 0, torch.nan, under)
        return exponentials, sums
    return None


def _weights_by_matrices(
    division: Operation, makers: Mapping[int, Operation], tokens: set[int]
) -> tuple[Operation, Tensor] | None:
    """The same where one matrix product multiplies by the exponentials of the biases and sums over the keys."""
    whole, below = (_behind_copies(each, makers) for each in division.inputs)
    if whole is None or below is None or below.name not in MATRIX_PRODUCTS:
        return None
    gated = whole.inputs if whole.name.rstrip("_") == "mul" else ()  # a gate may stand before the sum is divided
    sums = (whole, *(_behind_copies(each, makers) for each in gated))
    return next((found for each in sums if (found := _of_products(each, below, makers, tokens)) is not None), None)


def _of_products(
    above: Operation | None, below: Operation, makers: Mapping[int, Operation], tokens: set[int]
) -> tuple[Operation, Tensor] | None:
    """The same of two products with one matrix: of the exponentials of keys times the values, and of these alone."""
    if above is None or above.name not in MATRIX_PRODUCTS or len(above.inputs) != 2:
        return None
    if [each.shape for each in above.inputs] != [each.shape for each in below.inputs]:
        return None
    for at, of_values in enumerate(above.inputs):
        biases = above.inputs[1 - at]
        product, of_keys = _behind_copies(of_values, makers), _behind_copies(below.inputs[at], makers)
        if product is None or product.name.rstrip("_") != "mul" or not {*biases.shape[-2:]} <= tokens:
            continue
        if of_keys is None or of_keys.name != "exp":
            continue
        weighting = of_keys.outputs[0].data
        factors = [_behind_copies(each, makers) for each in product.inputs]
        if not any(each is not None and torch.equal(each.outputs[0].data, weighting) for each in factors):
            continue
        given = [below.inputs[at].data, biases.data]
        total: Tensor = above.function(*(given if at == 0 else given[::-1]))
        under = below.outputs[0].data
        return of_keys, total / torch.where(under == 0, torch.nan, under)
    return None


def _behind_copies(tensor: TensorRecord, makers: Mapping[int, Operation]) -> Operation | None:
    """The operation that made the numbers of a tensor, before they were copied into another order."""
    maker = makers.get(tensor.storage)
    while maker is not None and maker.name in ("clone", "contiguous"):
        maker = makers.get(maker.inputs[0].storage)
    return maker


def _made_by(tensor: TensorRecord, makers: Mapping[int, Operation], name: str) -> Operation | None:
    """The operation of a name that made a tensor; a number that is added to it afterwards, or a bound, is passed by."""
    maker = makers.get(tensor.storage)
    while maker is not None and maker.name.rstrip("_") in ("add", "clamp", "clamp_min") and len(maker.inputs) == 1:
        if maker.is_in_place or name == "exp":
            return None
        maker = makers.get(maker.inputs[0].storage)
    return maker if maker is not None and maker.name.rstrip("_") == name else None
