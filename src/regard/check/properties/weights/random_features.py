"""Random features of the softmax: exponentials of which, of queries and keys, the product is e^(q . k) on average.

Choromanski et al. 2021, "Rethinking Attention with Performers", section 2.2: the mean of e^(w . x) over normal w is
e^(|x|^2 / 2), so that |x|^2 / 2 has to be taken from w . x. Of queries it cancels; of keys it is a part of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.weights.feature_maximum import memory_of_keys, says_random_features
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["random_feature_findings"]

SAME = 1e-6
"""Of the largest number: what numbers that are the same differ by, after a matrix of float32."""
FEWEST = 8
"""Features of a key, by which a slope is told."""
PRODUCTS = frozenset({"bmm", "mm", "matmul"})


def random_feature_findings(invocation: Invocation, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """Whether features of keys that are exponentials of w . k are less |k|^2 / 2, up to what is the same for all keys.

    Args:
        invocation: a call of linear attention.
        instances: in which keys are multiplied by values before a query asks.
    """
    if not says_random_features(invocation.target):
        return
    for instance in instances:
        trace, keys = instance.run.trace, memory_of_keys(instance)
        for exponential in (each for each in trace if each.name.rstrip("_") == "exp"):
            if not keys & trace.made_of([exponential.outputs[0].storage]):
                continue
            gap = _stray_length(trace, exponential)
            if gap:
                message = (
                    "the product of random features is e^(q . k) on average where |k|^2 / 2 is taken from their "
                    f"exponents: what is taken here differs from it by up to {gap:.2g} from key to key"
                )
                yield Finding("violation", "random-features-estimate", "weights", message, exponential.location)
                return


def _stray_length(trace: Trace, exponential: Operation) -> float:
    """How far what is added to a . (w . k) in an exponent is from -|a k|^2 / 2, beside a number for all keys.

    0 where it is not, and of exponents that are something else, or whose matrix is learned.
    """
    exponent = exponential.inputs[0].data
    for product in reversed(trace.operations[: exponential.index]):
        if product.name not in PRODUCTS or len(product.inputs) != 2:
            continue
        vectors, matrix = (each.data for each in product.inputs)
        is_learned = product.inputs[1].learned
        made = trace.made_of([product.outputs[0].storage])
        if exponential.inputs[0].storage not in made or product.outputs[0].data.numel() != exponent.numel():
            continue
        if exponent.shape[-1] < FEWEST or vectors.shape[-1] != matrix.shape[-2] or is_learned:
            return 0.0
        along = product.outputs[0].data.reshape(exponent.shape)
        centered, moved = (each - each.mean(-1, keepdim=True) for each in (along, exponent))
        slope = (centered * moved).sum() / centered.square().sum()
        if float((moved - slope * centered).abs().max()) > SAME * max(1.0, float(exponent.abs().max())):
            return 0.0  # it is no such exponent
        lengths = (slope * vectors).square().sum(-1).reshape(exponent.shape[:-1]) / 2
        return _spread((exponent - slope * along).mean(-1) + lengths)
    return 0.0


def _spread(numbers: Tensor) -> float:
    """How far apart numbers are along the axis along which they are most alike; 0 where they are the same."""
    axes = [axis for axis, size in enumerate(numbers.shape) if size > 1]
    spreads = [float((numbers.amax(axis) - numbers.amin(axis)).max()) for axis in axes]
    least = min(spreads, default=0.0)
    return least if least > SAME * max(1.0, float(torch.abs(numbers).max())) else 0.0
