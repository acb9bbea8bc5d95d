"""Means over the tokens that are no padding: the sum of these, divided by their number."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.masks.source_masks import hides_keys, masks_of_keys
from regard.check.properties.other_methods import methods_of_a_call, run_of_method
from regard.check.properties.token_ids import with_padding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["masked_mean_findings", "pooled_mask_findings", "pooled_method_findings"]

MOVED = 1e-6
"""Of the largest number that is returned; less is rounding."""
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
        kept = given[name] != invocation.paddings[name]
        for count in (each for each in run if each.name == "sum" and _is_mask(each.inputs[0].data, kept)):
            found = _met(run, count, kept, name)
            if found is not None:
                yield found
                return
        pooled = _of_all(run, kept) if "padding-by-ids" in hidden else None
        if pooled is not None:
            message = (
                f"padding ({name} is {invocation.paddings[name]}) is hidden in the attentions, and the mean that is "
                "returned is of all tokens, padding included"
            )
            yield Finding("violation", PROPERTY, STEP, message, pooled.location)
            return


def pooled_mask_findings(invocation: Invocation, base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Tokens that a mask hides from all attentions, and that change the one vector that is returned for each sample.

    Hidden at the end, and at the begin: what reads the first token alone, or the last one, has to see one of them.

    Args:
        invocation: a call without a mask.
        base: its run.
        several: of each of its attentions.
    """
    streams = invocation.streams
    if not several or any(each.is_masked for each in several) or len(streams) != 1:
        return
    parts = [part for each in several for part in (each.base.query, each.base.key)]
    if not invocation.masks or any(int(part.token.min()) < 0 for part in parts):
        return  # they are of several tokens each
    samples, _, queries, keys = several[0].base.dense(several[0].base.weight).shape
    given = invocation.arguments[streams[0].argument]
    if (streams[0].batch_axis, *streams[0].token_axes) != (0, 1) or given.shape[:2] != (samples, keys):
        return
    if not base.outputs or any(each.shape[:1] != (samples,) or each.data.ndim != 2 for each in base.outputs):
        return
    for name in invocation.masks:
        changes = _changes(invocation, several, name, (samples, queries, keys))
        if min(changes) > MOVED:
            line = _of_all(base, torch.zeros(samples, keys, dtype=torch.bool))
            message = (
                f"{name} hides tokens from the attentions, and what is returned changes with them all the same, by up "
                f"to {max(changes):.2g}: they are in what is read of all tokens in the end"
            )
            yield Finding("violation", PROPERTY, STEP, message, None if line is None else line.location)
            return


def pooled_method_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """The same of a method beside a module's call, that takes what the call takes and returns a vector of each sample.

    As one that embeds sentences by the mean of the states that the call returns.

    Args:
        invocation: a call of a module.
        several: of each of its attentions.
    """
    if not several or len(invocation.streams) != 1 or not invocation.masks or invocation.packed:
        return
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    if (stream.batch_axis, *stream.token_axes) != (0, 1) or given.ndim < 2:
        return
    samples, tokens = given.shape[:2]
    for method in methods_of_a_call(invocation):
        returned = run_of_method(invocation, method, stream.argument, given)
        if returned.error or len(returned.outputs) != 1 or not returned.outputs[0].data.is_floating_point():
            continue
        if returned.outputs[0].data.ndim != 2 or returned.outputs[0].shape[0] != samples or samples == tokens:
            continue
        if returned.outputs[0].shape[1] == tokens:
            continue  # they are numbers of its tokens
        for name in invocation.masks:
            queries = several[0].base.dense(several[0].base.weight).shape[2]
            changes = _changes(invocation, several, name, (samples, queries, tokens), method)
            if min(changes) > MOVED:
                line = _of_all(returned, torch.zeros(samples, tokens, dtype=torch.bool))
                message = (
                    f"{name} hides tokens from the attentions, and what {method}() returns changes with them all the "
                    f"same, by up to {max(changes):.2g}: they are in what is read of all tokens in the end"
                )
                yield Finding("violation", PROPERTY, STEP, message, None if line is None else line.location)
                return


def _changes(
    invocation: Invocation, several: Sequence[Evidence], name: str, sizes: tuple[int, int, int], method: str = ""
) -> list[float]:
    """By how much what is returned changes with tokens that a mask hides from all attentions: at the end, in front.

    Args:
        invocation: a call.
        several: of each of its attentions.
        name: of the argument that takes the mask.
        sizes: samples, queries and keys.
        method: the name of the method that is called instead of the module.
    """
    samples, queries, keys = sizes
    changes = []
    for side in ("end", "front"):
        hidden = ~padding_mask([samples, keys], side)
        masks = masks_of_keys(hidden, samples, queries)
        exact = (each for each in masks if all(hides_keys(one, each, invocation, name, hidden) for one in several))
        value = next(exact, None)
        changes.append(0.0 if value is None else _changed(invocation, {name: value}, hidden, method))
    return changes


def _changed(invocation: Invocation, masked: Mapping[str, Any], hidden: Tensor, method: str = "") -> float:
    """By how much the first output changes with hidden tokens, of the largest number in it; 0 where it cannot run.

    Args:
        invocation: a call.
        masked: the mask that hides them.
        hidden: (samples, tokens): which.
        method: the name of the method that is called instead of the module.
    """
    name = invocation.streams[0].argument
    given, fresh = invocation.arguments[name], with_fresh_tokens(invocation)[name]
    where = hidden.reshape(hidden.shape + (1,) * (given.ndim - hidden.ndim))
    tokens = [given, torch.where(where, fresh, given)]
    call = replace(invocation, arguments={**invocation.arguments, **masked})
    runs = [
        run_of_method(call, method, name, each) if method else record_invocation(call, {**call.arguments, name: each})
        for each in tokens
    ]
    if any(each.error or not each.outputs for each in runs) or runs[0].outputs[0].shape != runs[1].outputs[0].shape:
        return 0.0
    one, other = (each.outputs[0].data for each in runs)
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-12))


def _is_mask(numbers: Tensor, kept: Tensor) -> bool:
    """Whether some numbers are 1, or true, where a token is no padding, and 0 where it is."""
    is_binary = numbers.dtype == torch.bool or bool(((numbers == 0) | (numbers == 1)).all())
    return is_binary and numbers.numel() == kept.numel() and torch.equal(numbers.reshape(kept.shape) != 0, kept)


def _of_all(run: Trace, kept: Tensor) -> Operation | None:
    """The mean over all tokens that all outputs are made of, whatever the numbers of padding; None where there is none.

    Outputs have a vector of each sample, or a number, as how much two texts are alike. Padding whose numbers were set
    to 0 may be left out of it, as by a factor for their number.
    """
    for operation in run:
        if operation.name != "mean" or operation.inputs[0].data.ndim != 3 or len(operation.args) < 2:
            continue
        tokens = operation.inputs[0].data
        axes = operation.args[1] if isinstance(operation.args[1], list | tuple) else [operation.args[1]]
        if tuple(tokens.shape[:2]) != tuple(kept.shape) or [each % 3 for each in axes if each is not None] != [1]:
            continue
        made = run.made_of([operation.outputs[0].storage])
        are_of_samples = all(each.data.ndim in (1, 2) and len(each.data) == len(kept) for each in run.outputs)
        if bool(tokens[~kept].any()) and are_of_samples and all(each.storage in made for each in run.outputs):
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
