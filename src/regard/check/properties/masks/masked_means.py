"""Means over the tokens that are no padding: the sum of these, divided by their number."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.token_ids import with_padding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.token_ids import PADDING_ID
from regard.check.trace.operation import Operation, Trace

__all__ = ["masked_mean_findings"]

PROPERTY, STEP = "mean-of-the-kept", "output"


def masked_mean_findings(invocation: Invocation) -> Iterator[Finding]:
    """A sum over tokens that meets the number of those that are no padding, and is no mean of these.

    Args:
        invocation: a call of token ids.
    """
    for name, given in with_padding(invocation):
        run = record_invocation(invocation, given, lines=True)
        kept = given[name] != PADDING_ID
        for count in (each for each in run if each.name == "sum" and _is_mask(each.inputs[0].data, kept)):
            found = _met(run, count, kept, name)
            if found is not None:
                yield found
                return


def _is_mask(numbers: Tensor, kept: Tensor) -> bool:
    """Whether some numbers are 1, or true, where a token is no padding, and 0 where it is."""
    is_binary = numbers.dtype == torch.bool or bool(((numbers == 0) | (numbers == 1)).all())
    return is_binary and numbers.numel() == kept.numel() and torch.equal(numbers.reshape(kept.shape) != 0, kept)


def _met(run: Trace, count: Operation, kept: Tensor, name: str) -> Finding | None:
    """What is wrong with the first sum over tokens that is divided by how many are kept, or multiplied; else None."""
    numbers, sums = run.made_of([count.outputs[0].storage]), dict[int, Operation]()
    for operation in run.operations:
        inputs = operation.inputs
        if operation.name == "sum" and inputs[0].shape[:2] == tuple(kept.shape) and inputs[0].data.ndim > 2:
            sums[operation.outputs[0].storage] = operation
        if operation.name not in ("div", "mul") or len(inputs) != 2:
            continue
        for above, below in ((inputs[0], inputs[1]), (inputs[1], inputs[0])):
            total = sums.get(above.storage)
            if total is None or below.storage not in numbers or above.storage in numbers:
                continue
            if operation.name == "mul" and torch.equal(below.data.double().flatten(), kept.sum(1).double()):
                message = "a sum over the tokens is multiplied by the number of those that are no padding, not divided"
                return Finding("violation", PROPERTY, STEP, message, operation.location)
            if operation.name == "div" and bool(total.inputs[0].data[~kept].any()):
                message = (
                    f"what is divided by the number of tokens that are no padding ({name}) is the sum of all, "
                    "padding included"
                )
                return Finding("violation", PROPERTY, STEP, message, total.location)
    return None
