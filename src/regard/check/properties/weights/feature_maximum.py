"""What random features are divided by against overflow: one number for all keys, or it does not cancel.

A query's own maximum is in its numerator and in its denominator; a key's is in the weight of this key alone. The code
of the paper (Choromanski et al. 2021, "Rethinking Attention with Performers") takes the maximum of all keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Finding
from regard.check.properties.weights.normalizers import values_places
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["feature_maximum_findings", "memory_of_keys", "says_random_features"]

_RANDOM_FEATURES = re.compile(r"favor|performer|random\s*(?:fourier\s*)?features?|soft-?max[\s_-]*kernel", re.I)
_MAXIMA = frozenset({"amax", "max"})


def says_random_features(target: Any) -> bool:
    """Whether a target, or its code, speaks of random features of the softmax."""
    return _RANDOM_FEATURES.search(f"{name_and_documentation(target)}\n{source_of(target)}") is not None


def memory_of_keys(instance: AttentionInstance) -> set[int]:
    """The memory of the features of keys that are multiplied by values."""
    values, places = values_places(instance), set[tuple[int, int]]()
    for product in instance.scores:
        places |= {*product.places} - {*values} if values else set()
    return {instance.run.trace.taken(each).storage for each in places}


def feature_maximum_findings(invocation: Invocation, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """Whether the features of keys are less a maximum of each key's own, before the exponential.

    Args:
        invocation: a call of linear attention.
        instances: in which keys are multiplied by values before a query asks.
    """
    if not says_random_features(invocation.target):
        return
    for instance in instances:
        trace, keys = instance.run.trace, memory_of_keys(instance)
        for maximum in (each for each in trace if each.name in _MAXIMA and len(each.inputs) == 1):
            taken, found = maximum.inputs[0], maximum.outputs[0]
            of_each = (
                found.data.numel() * taken.data.shape[-1] == taken.data.numel() and len(torch.unique(found.data)) > 1
            )
            if of_each and any(keys & trace.made_of([each.storage]) for each in _exponentials(trace, taken, found)):
                message = (
                    "what is subtracted from the features of a key before the exponential is the largest of its own: "
                    "it differs from key to key, so that it does not cancel"
                )
                yield Finding("violation", "softmax-maximum", "weights", message, maximum.location)
                return


def _exponentials(trace: Trace, taken: TensorRecord, maximum: TensorRecord) -> Iterator[TensorRecord]:
    """Exponentials of numbers less their maximum, that are not divided by their sum afterwards."""
    less, largest = set[int](), trace.made_of([maximum.storage])
    for operation in trace:
        name, inputs = operation.name.rstrip("_"), [each.storage in largest for each in operation.inputs]
        if name == "sub" and inputs == [False, True]:
            less |= trace.made_of([operation.outputs[0].storage])
        elif name == "exp" and operation.inputs[0].storage in less and operation.inputs[0].shape == taken.shape:
            made = trace.made_of([operation.outputs[0].storage])
            if not any(each.name.rstrip("_") == "div" and _are_made(each, made, taken) for each in trace):
                yield operation.outputs[0]


def _are_made(division: Operation, made: set[int], taken: TensorRecord) -> bool:
    """Whether numbers of this shape are divided by a sum of them."""
    inputs = division.inputs
    return len(inputs) == 2 and all(each.storage in made for each in inputs) and inputs[0].shape == taken.shape
