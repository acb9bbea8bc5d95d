"""Means over the tokens that are no padding: the sum of these, divided by their number."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.masks.source_masks import hides_keys, masks_of_keys
from regard.check.properties.token_ids import with_padding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["masked_mean_findings", "pooled_mask_findings"]

PROPERTY, STEP = "mean-of-the-kept", "output"


def masked_mean_findings(invocation: Invocation, hidden: Collection[str] = ()) -> Iterator[Finding]:
    """A sum over tokens that meets the number of those that are no padding, and is no mean of these.

    Or a mean of all, padding included, where that is hidden in the attentions.

    Args:
        invocation: a call of token ids.
        hidden: the properties that hold of its attentions.
    """
    for name, given in with_padding(invocation):
        if any(each.argument == name and each.batch_axis != 0 for each in invocation.streams):
            continue
        run = record_invocation(invocation, given, lines=True)
        kept = given[name] != invocation.padding_id
        for count in (each for each in run if each.name == "sum" and _is_mask(each.inputs[0].data, kept)):
            found = _met(run, count, kept, name)
            if found is not None:
                yield found
                return
        pooled = _of_all(run, kept) if "padding-by-ids" in hidden else None
        if pooled is not None:
            message = (
                f"padding ({name} is {invocation.padding_id}) is hidden in the attentions, and the mean that is "
                "returned is of all tokens, padding included"
            )
            yield Finding("violation", PROPERTY, STEP, message, pooled.location)
            return


def pooled_mask_findings(invocation: Invocation, base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """The same mean of all where an argument hides tokens from all attentions.

    Args:
        invocation: a call without a mask.
        base: its run.
        several: of each of its attentions.
    """
    if not several or not any(each.name == "mean" for each in base) or any(each.is_masked for each in several):
        return
    samples, _, queries, keys = several[0].base.dense(several[0].base.weight).shape
    if _of_all(base, torch.zeros(samples, keys, dtype=torch.bool)) is None:
        return
    hidden = ~padding_mask([samples, keys], "end")
    for name in invocation.masks:
        for value in masks_of_keys(hidden, samples, queries):
            if not all(hides_keys(each, value, invocation, name, hidden) for each in several):
                continue
            run = record_invocation(invocation, {**invocation.arguments, name: value}, lines=True)
            pooled = _of_all(run, ~hidden)
            if pooled is not None:
                message = (
                    f"{name} hides tokens from the attentions, and the mean that is returned is of all tokens, the "
                    "hidden ones included"
                )
                yield Finding("violation", PROPERTY, STEP, message, pooled.location)
                return
            break


def _is_mask(numbers: Tensor, kept: Tensor) -> bool:
    """Whether some numbers are 1, or true, where a token is no padding, and 0 where it is."""
    is_binary = numbers.dtype == torch.bool or bool(((numbers == 0) | (numbers == 1)).all())
    return is_binary and numbers.numel() == kept.numel() and torch.equal(numbers.reshape(kept.shape) != 0, kept)


def _of_all(run: Trace, kept: Tensor) -> Operation | None:
    """The mean over all tokens that all outputs are made of, whatever the numbers of padding; None where there is none.

    Padding whose numbers were set to 0 may be left out of it, as by a factor for their number.
    """
    for operation in run:
        if operation.name != "mean" or operation.inputs[0].data.ndim != 3 or len(operation.args) < 2:
            continue
        tokens = operation.inputs[0].data
        axes = operation.args[1] if isinstance(operation.args[1], list | tuple) else [operation.args[1]]
        if tuple(tokens.shape[:2]) != tuple(kept.shape) or [each % 3 for each in axes if each is not None] != [1]:
            continue
        made = run.made_of([operation.outputs[0].storage])
        if bool(tokens[~kept].any()) and all(each.storage in made and each.data.ndim == 2 for each in run.outputs):
            return operation
    return None


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
