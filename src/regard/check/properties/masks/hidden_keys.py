"""Linear attention whose mask hides no key: tokens that it hides reach the others all the same.

As where keys are set to 0 before the features of the kernel, which make 1 of it (elu(0) + 1; Katharopoulos et al. 2020,
"Transformers are RNNs").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.masks.documented import documented_forms
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.states import goes_on, optional_states
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.documented_shapes import documented_letters
from regard.check.target.errors import Failed
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.trace.operation import Trace

__all__ = ["LEAST", "OF_NEIGHBOURS", "hidden_key_findings", "hiding_values", "moved_by"]

SHAPES = ("bk", "b1k", "b11k", "bk1", "b1k1", "bk11")
"""Axes of a mask of padding: samples, keys."""
OF_NEIGHBOURS = frozenset({"convolution", "native_group_norm", "native_batch_norm"})
"""What else padding may reach other tokens by, whatever the attention hides."""
LEAST = 1e-9
"""Of what an output changes by; less is rounding."""
LEFT = 0.02
"""Of what hidden tokens reach without a mask: less is what keeps a denominator away from zero."""


def hidden_key_findings(invocation: Invocation, base: Trace, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """Whether tokens that a mask, or lengths, hide change no output of another, in one form and shape at least.

    Args:
        invocation: a call of linear attention of one sequence without a mask.
        base: its run.
        instances: in which keys are multiplied by values before a query asks.
    """
    streams = invocation.streams
    if len(streams) != 1 or streams[0].batch_axis != 0 or streams[0].token_axes != (1,):
        return
    if any(each.name in OF_NEIGHBOURS for each in base):
        return
    name = streams[0].argument
    given = invocation.arguments[name]
    if not given.is_floating_point():
        return
    samples, tokens = given.shape[:2]
    drawn = torch.randn(given.shape, generator=torch.Generator().manual_seed(7), dtype=given.dtype)
    for side in ("end", "front"):  # where each token sees those before it alone, what is padding comes first
        keys = padding_mask([samples, tokens], side)
        other = torch.where(keys.reshape(samples, tokens, *[1] * (given.ndim - 2)), given, drawn)
        free = moved_by(invocation, {name: other}, {}, keys)
        if free is None:
            return
        if free[0] > LEAST:
            break
    else:
        return
    for argument, values in hiding_values(invocation, keys):
        left, kept = [], list[Tensor]()
        for value in values:
            moved = moved_by(invocation, {name: other}, {argument: value}, keys)
            # One that changes what padding returns, and nothing else, is of queries.
            if moved is not None and float((moved[1] - free[1])[keys].abs().max()) > LEAST:
                left.append(moved[0] / free[0])
                kept += [value] if left[-1] <= LEFT else []
        if left and min(left) <= LEFT:
            yield Finding("holds", "mask-form", "mask", f"tokens that {argument} hides reach no others")
            yield from _beside_a_state(invocation, name, argument, kept[0], keys)
        elif left and (side == "end" or not _is_shifted(base, tokens)):
            message = (
                f"tokens that {argument} hides reach the others all the same: exchanged, they change an output by "
                f"{min(left):.0%} of what they change it by without a mask"
            )
            line = instances[0].sums_location if instances else None
            yield Finding("violation", "mask-argument", "mask", message, line)
            return


def _is_shifted(base: Trace, tokens: int) -> bool:
    """Whether a run moves tokens along by one, as where each is mixed with the one before it."""
    return any(
        each.name in ("roll", "constant_pad_nd")
        or (
            each.name == "cat"
            and any(tokens - 1 in one.shape for one in each.inputs)
            and tokens in each.outputs[0].shape
        )
        for each in base
    )


def _beside_a_state(invocation: Invocation, name: str, mask: str, value: Tensor, keys: Tensor) -> Iterator[Finding]:
    """A mask that is not read where a state of an earlier part is handed over, by which a text is said to go on.

    Code that goes on with one token at a time alone may leave it out: that one is no padding.

    Args:
        invocation: the call.
        name: its sequence.
        mask: an argument that hides tokens without a state.
        value: by which it hides all but some.
        keys: (samples, tokens): these.
    """
    states = optional_states(invocation)
    if len(states) != 1 or not goes_on(" ".join(documentation_of(invocation.target).split())):
        return
    try:
        returned = invocation.run()
    except Failed:
        return
    if not isinstance(returned, tuple) or len(returned) != 2 or returned[1] is None:
        return
    state = {states[0]: tree_map(lambda each: each.detach() if isinstance(each, Tensor) else each, returned[1])}
    begun, hidden, free = (moved_by(invocation, {}, each, keys) for each in ({}, {**state, mask: value}, state))
    if begun is None or hidden is None or free is None or _apart(begun, free, keys) <= LEAST:
        return  # the state is not read
    if _apart(hidden, free, keys) <= LEAST:
        message = (
            f"{mask} hides tokens in a first call, and none in one that goes on from the {states[0]} of an earlier "
            "one: padding in later parts of a text reaches the others"
        )
        yield Finding("violation", "mask-argument", "mask", message)


def _apart(one: tuple[float, Tensor], other: tuple[float, Tensor], keys: Tensor) -> float:
    """How far apart two outputs are for some tokens."""
    return float((one[1] - other[1])[keys].abs().max())


def hiding_values(invocation: Invocation, keys: Tensor) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Each argument that may hide keys, and the values by which it would hide all but some (samples, keys)."""
    samples, tokens = keys.shape
    for mask in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]:
        told = documented_letters(source_of(invocation.target), mask)
        shapes = [each for each in SHAPES if not told or len(each) == len(told)]
        sizes = [[{"b": samples, "k": tokens, "1": 1}[letter] for letter in shape] for shape in shapes]
        forms = documented_forms(invocation, mask) or MASK_FORMS
        yield mask, [write_mask(keys.reshape(each), form) for form in forms for each in sizes]
    for lengths in invocation.lengths:
        value = keys.sum(1)
        if _is_padding_told(record_invocation(invocation, {**invocation.arguments, lengths: value}), keys):
            yield lengths, [value]


def _is_padding_told(run: Trace, keys: Tensor) -> bool:
    """Whether a mask of padding is made in a run; lengths that sums are divided by alone hide nothing."""
    made = (each.data for operation in run for each in operation.outputs if each.data.numel() == keys.numel())
    return any(torch.equal(each.bool().flatten(), side.flatten()) for each in made for side in (keys, ~keys))


def moved_by(
    invocation: Invocation, others: Mapping[str, Any], given: Mapping[str, Any], keys: Tensor
) -> tuple[float, Tensor] | None:
    """By how much outputs of real tokens change with hidden ones, and what is returned; None where it cannot run."""
    arguments = {**invocation.arguments, **given}
    runs = [record_invocation(replace(invocation, arguments={**arguments, **each})) for each in ({}, others)]
    if any(each.error or not each.outputs for each in runs):
        return None
    before, after = (each.outputs[0].data for each in runs)
    if before.shape != after.shape or before.shape[:2] != keys.shape or before.is_complex():
        return None
    change = (after - before)[keys].abs().max()
    return (float(change), before) if bool(change.isfinite()) and bool(before[keys].isfinite().all()) else None
