"""What the axes of the inputs are: one slice changes, and the slices of the outputs that move tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.target.errors import Failed
from regard.check.target.running import Invocation, Stream

__all__ = ["depends", "given_stream", "settled_streams"]

Moved = list[Tensor]
"""For each output, which of its numbers changed."""


def changed(value: Tensor, axis: int, index: int) -> Tensor:
    """A tensor with other numbers in one slice."""
    other = value.clone()
    part = other.select(axis, index)
    if value.is_floating_point():
        generator = torch.Generator().manual_seed(41 + index)
        part += torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.dtype)
    elif value.dtype is torch.bool:
        part.logical_not_()
    else:
        part.copy_((part + 1) % (int(value.max()) + 1))
    return other


class Influence:
    """Of the inputs of one call on its outputs."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._base = invocation.outputs(invocation.run())

    def moved(self, argument: str, axis: int, index: int, arguments: Mapping[str, Any] | None = None) -> Moved:
        """Which numbers of each output change with one slice of an argument."""
        given = dict(self._invocation.arguments if arguments is None else arguments)
        base = self._base if arguments is None else self._invocation.outputs(self._invocation.run(given))
        given[argument] = changed(given[argument], axis, index)
        after = self._invocation.outputs(self._invocation.run(given))
        return [
            (one != two) & ~(one.isnan() & two.isnan())
            for one, two in zip(base, after, strict=False)
            if one.shape == two.shape
        ]

    def locality(self, argument: str, axis: int) -> bool | None:
        """Whether slices along an axis stay apart: each moves its own slice of every output that moves, and no other.

        None where no output moves at all.
        """
        size = self._invocation.arguments[argument].shape[axis]
        if size < 2:
            return None
        alone: dict[int, set[str]] = {}
        for index in (0, size - 1):
            for number, moved in enumerate(self.moved(argument, axis, index)):
                if moved.numel() > 1 and bool(moved.any()):  # a single number may be a loss, of all samples
                    places = set(_slices_alone(moved, size, index))
                    alone[number] = alone.get(number, places) & places
        return all(alone.values()) if alone else None


def _slices_alone(moved: Tensor, size: int, index: int) -> Iterator[str]:
    """The axes of an output along which only one slice moved; an axis may hold slices side by side, as of heads."""
    for axis in range(moved.ndim):
        count, rest = divmod(moved.shape[axis], size)
        if rest or not count:
            continue
        along = moved.movedim(axis, 0).flatten(1).any(1) if moved.ndim > 1 else moved
        for name, slices in (("outer", along.view(size, count).any(1)), ("inner", along.view(count, size).any(0))):
            if slices.nonzero().flatten().tolist() == [index]:
                yield f"{axis} {name}"


def locality(invocation: Invocation, argument: str) -> list[bool | None]:
    """`Influence.locality` for each axis of an argument."""
    influence = Influence(invocation)
    return [influence.locality(argument, axis) for axis in range(invocation.arguments[argument].ndim)]


def depends(invocation: Invocation, argument: str, axis: int, index: int, arguments: Mapping[str, Any]) -> Moved:
    """Which numbers of each output change with one slice of an argument, for some arguments of the call."""
    return Influence(invocation).moved(argument, axis, index, arguments)


def settled_streams(invocation: Invocation) -> tuple[list[Stream], int]:
    """The streams of a call with their axes found by influence.

    Samples do not mix, tokens do. Where what is seen fits no such reading, as where a mistake mixes the samples, the
    axes stay as they are.

    Returns:
        The streams, and how clear it is: 2 if samples stay apart and tokens mix, 1 if tokens do not mix or samples do,
        0 if no input has an effect.
    """
    influence = Influence(invocation)
    by_role = {stream.role: stream for stream in invocation.streams}
    try:
        if {"q", "k", "v"} <= set(by_role):
            return _of_attention(invocation, influence, by_role)
        return _of_sequences(invocation, influence)
    except Failed:
        return invocation.streams, 0


def given_stream(invocation: Invocation, argument: str, role: str, image: bool) -> Stream:
    """An input of the user's as a stream: its axes by influence, and by their number where that says nothing."""
    value = invocation.arguments[argument]
    axes = value.ndim if not value.is_floating_point() else value.ndim - 1
    if image and value.ndim == 4:
        return Stream(argument, role, 0, (2, 3))
    if axes < 2:
        return Stream(argument, role, None, (0,))
    if axes == 2:
        return Stream(argument, role, 0, (1,))
    if role in ("q", "k", "v"):
        return Stream(argument, role, 0, (2,), 1)
    try:
        local = locality(invocation, argument)[:axes]
    except Failed:
        local = []
    batch = next((axis for axis, apart in enumerate(local) if apart), 0)
    tokens = tuple(axis for axis, apart in enumerate(local) if apart is False and axis != batch)
    return Stream(argument, role, batch, tokens or tuple(axis for axis in range(axes) if axis != batch))


def _of_sequences(invocation: Invocation, influence: Influence) -> tuple[list[Stream], int]:
    clear = 0
    settled = []
    for stream in invocation.streams:
        if stream.batch_axis is None or len(stream.token_axes) != 1:
            local = [influence.locality(stream.argument, axis) for axis in stream.token_axes]
            batch = None if stream.batch_axis is None else influence.locality(stream.argument, stream.batch_axis)
            seen = 2 if batch is not False and False in local else 1 if set(local) != {None} else 0
            clear = max(clear, seen)
            settled.append(stream)
            continue
        axes = (stream.batch_axis, stream.token_axes[0])
        batch, tokens = (influence.locality(stream.argument, axis) for axis in axes)
        if batch is False and tokens is True:
            stream = replace(stream, batch_axis=axes[1], token_axes=(axes[0],))
            seen = 2
        else:
            seen = 0 if batch is None and tokens is None else 2 if (batch, tokens) == (True, False) else 1
        clear = max(clear, seen)
        settled.append(stream)
    return settled, clear


def _of_attention(
    invocation: Invocation, influence: Influence, by_role: Mapping[str, Stream]
) -> tuple[list[Stream], int]:
    """Of q, k and v: along the channels of v nothing mixes, along its tokens everything does."""
    key, value = by_role["k"], by_role["v"]
    axes = range(invocation.arguments[key.argument].ndim)
    if invocation.arguments[value.argument].ndim != len(axes):
        return invocation.streams, 1
    of_key = [influence.locality(key.argument, axis) for axis in axes]
    of_value = [influence.locality(value.argument, axis) for axis in axes]
    if set(of_key) == {None} and set(of_value) == {None}:
        query = by_role["q"]  # self-attention that takes all three and reads one
        if key.head_axis is not None or invocation.arguments[query.argument].ndim != len(axes):
            return invocation.streams, 0
        of_key = [influence.locality(query.argument, axis) for axis in axes]
        if set(of_key) == {None}:
            return invocation.streams, 0
    if key.head_axis is None:
        return _of_tokens_and_batch(invocation, key, of_key)
    apart = [axis for axis in axes if of_key[axis] and of_value[axis]]
    mixed = [axis for axis in axes if of_key[axis] is False and of_value[axis] is False]
    expected = [axis for axis in (key.batch_axis, key.head_axis) if axis is not None]
    if apart == sorted(expected) and set(mixed) >= set(key.token_axes):
        return invocation.streams, 2
    if key.token_axes != value.token_axes:  # one of them is turned, as its documentation says
        return invocation.streams, 1
    if len(mixed) == 1 and len(apart) == len(expected):
        batch = apart[0] if key.batch_axis is not None and apart else None
        head = next((axis for axis in apart if axis != batch), None) if key.head_axis is not None else None
        return [
            replace(stream, batch_axis=batch, head_axis=head, token_axes=(mixed[0],))
            if invocation.arguments[stream.argument].ndim == len(axes)
            else stream  # ids of the tokens, without heads
            for stream in invocation.streams
        ], 2
    return invocation.streams, 1


def _of_tokens_and_batch(invocation: Invocation, key: Stream, local: list[bool | None]) -> tuple[list[Stream], int]:
    """Of q, k and v without heads: the projections of a module mix the channels, so that two axes are left."""
    if len(key.token_axes) != 1 or key.batch_axis is None:
        return invocation.streams, 2 if any(local[axis] is False for axis in key.token_axes) else 1
    batch, tokens = key.batch_axis, key.token_axes[0]
    if local[batch] and local[tokens] is False:
        return invocation.streams, 2
    if local[tokens] and local[batch] is False:
        return [replace(stream, batch_axis=tokens, token_axes=(batch,)) for stream in invocation.streams], 2
    return invocation.streams, 1
