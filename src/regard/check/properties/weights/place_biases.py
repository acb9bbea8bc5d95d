"""Attention free transformers whose weights are e^(k + w): w is learned for each two places, and sums are products.

Zhai et al. 2021, "An Attention Free Transformer" (arXiv:2105.14103), section 3.1: e^w (e^k v) over e^w e^k, so that
neither is made of queries. What is taken from k against overflow has to be the same for all keys, or it does not
cancel; what is hidden has e^w = 0, not w = 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from regard.check.properties.documentation import documentation_of, promises_causal_attention, promises_causality
from regard.check.properties.finding import Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.target import Invocation
from regard.check.trace.operation import COPIES, Operation, TensorRecord, Trace

__all__ = ["place_bias_findings"]

PRODUCTS = frozenset({"bmm", "mm", "matmul"})
MAXIMA = frozenset({"amax", "max"})
Makers = Mapping[int, Operation]
"""By memory, what has made the numbers in it."""


def place_bias_findings(invocation: Invocation, trace: Trace) -> Iterator[Finding]:
    """What is wrong with values times exponentials of keys that are mixed by learned weights of two places.

    Args:
        invocation: the call.
        trace: its run, in which attention free sums were found.
    """
    given = {each.argument for each in invocation.streams} & trace.arguments.keys()
    read = trace.made_of({trace.arguments[each].storage for each in given})
    makers: dict[int, Operation] = {}
    for operation in trace:
        if operation.name.rstrip("_") == "div" and len(operation.inputs) == 2:
            parts = _parts(operation, makers, read)
            if parts is not None:
                yield from _judged(invocation, makers, *parts)
                return
        if operation.outputs and not operation.is_view:
            makers[operation.outputs[0].storage] = operation


def _judged(
    invocation: Invocation, makers: Makers, product: Operation, places: Tensor, exp: Operation
) -> Iterator[Finding]:
    """Of the sum of the values, its weights of two places (queries, keys), and the exponential of keys."""
    maximum, text = _maximum_of_each(invocation, makers, exp), documentation_of(invocation.target)
    later = (places.triu(1).abs() > ZERO_WEIGHT).nonzero()
    if maximum is not None:
        message = (
            "what is subtracted from keys before the exponential is a maximum that differs from token to token, so "
            "that it does not cancel"
        )
        yield Finding("violation", "softmax-maximum", "weights", message, maximum.location)
    if len(later) and (promises_causality(text) or promises_causal_attention(text)):
        query, key = (int(each) for each in later[0])
        message = (
            f"its documentation says that it is causal: key {key} has {float(places[query, key]):.4g} times the weight "
            f"of its own exponential for query {query}, an earlier one"
        )
        yield Finding("violation", "mask-pattern", "mask", message, product.location)


def _parts(division: Operation, makers: Makers, read: set[int]) -> tuple[Operation, Tensor, Operation] | None:
    """The sum of the values that is divided, its weights of two places, and the exponential of keys in it."""
    above, divisor = (_maker(each, makers) for each in division.inputs)
    below = _product(divisor, read)
    gated = above.inputs if above is not None and above.name.rstrip("_") == "mul" else ()
    sums = [above, *(_maker(each, makers) for each in gated)]  # a gate may stand before the sum is divided
    for each in sums if below is not None else ():
        found = _product(each, read)
        if each is None or found is None or below is None or not torch.equal(found[0], below[0]):
            continue
        times = _maker(found[1], makers)
        total = _maker(below[1], makers)
        factors = [_maker(one, makers) for one in times.inputs] if times is not None and times.name == "mul" else []
        if total is not None and total.name == "exp" and any(one is total for one in factors):
            return each, found[0], total
    return None


def _product(operation: Operation | None, read: set[int]) -> tuple[Tensor, TensorRecord] | None:
    """Of a product of what no token changes, (queries, keys), and of what is made of tokens: both; None of others."""
    if operation is None or operation.name not in PRODUCTS or len(operation.inputs) != 2:
        return None
    made = [each.storage in read for each in operation.inputs]
    if sum(made) != 1:
        return None
    places = operation.inputs[made.index(False)].data
    places = places if made[1] else places.mT
    places = places.reshape(-1, *places.shape[-2:])
    if places.shape[-1] != places.shape[-2] or not bool((places == places[:1]).all()):
        return None
    return places[0], operation.inputs[made.index(True)]


def _maker(record: TensorRecord, makers: Makers) -> Operation | None:
    """What has made the numbers of a tensor, not what has copied them."""
    maker = makers.get(record.storage)
    while maker is not None and maker.name in COPIES:
        maker = makers.get(maker.inputs[0].storage)
    return maker


def _maximum_of_each(invocation: Invocation, makers: Makers, exp: Operation) -> Operation | None:
    """The maximum that is subtracted before an exponential, where it differs among the tokens of a sample."""
    less, axis = _maker(exp.inputs[0], makers), invocation.streams[0].token_axes[0]
    if less is None or less.name != "sub" or len(less.inputs) != 2 or len(invocation.streams[0].token_axes) != 1:
        return None
    maximum, taken = _maker(less.inputs[1], makers), less.inputs[1].data
    if maximum is None or maximum.name not in MAXIMA or taken.ndim != less.outputs[0].data.ndim or axis >= taken.ndim:
        return None
    differs = taken.shape[axis] > 1 and bool((taken != taken.narrow(axis, 0, 1)).any())
    return maximum if differs else None
