"""Tables of sines and cosines that are added to the tokens: their frequencies, measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.trace.operation import TensorRecord, Trace

__all__ = ["sinusoid_findings"]

BASE = 10000.0
"""Of the paper; where it stands in the code, its frequencies are meant."""
MIN_PLACES = 4
"""Along an axis: of fewer, anything may be a sine."""
SEVERAL = 3
"""Frequencies that show how they go on; no more than one further is looked at, as rounding grows with them."""
PAIR = 2
"""Channels of one frequency."""
MANY_CHANNELS = 8
"""That more than one frequency is made for."""
TURNS = 4
"""Full turns from place to place that may be hidden in the second frequency."""
MOST_PLACES = 64
"""Of a table that are looked at: more of them are rounded more."""
_LOOKS_UP = frozenset({"embedding", "index_select", "index", "_to_copy", "clone"})
CLOSE = 1e-3
ROUNDED = 1e-2
"""Of sines of thousands of radians in float32."""


@dataclass(frozen=True)
class _Sinusoids:
    """The channels of a table, along one axis of places."""

    frequencies: Sequence[float]
    """The first ones, in their order, less full turns."""
    channels: int
    axes: int
    """Of places."""
    moving: int = 0
    """How many channels are not the same at every place."""
    is_half_empty: bool = False
    """Whether every second channel is 0 at every place."""
    are_twice: bool = False
    """Whether every second channel is the same as the one before it, or the second half of them as the first."""
    is_one: bool = False
    """Whether all channels, but for those of a pair that no place changes, have one and the same frequency."""
    are_alone: bool = False
    """Whether no two channels have the first frequency, as the sine and the cosine of a pair have."""
    by_parity: Sequence[Sequence[float]] = ()
    """The first frequencies of every second channel: of the sines, and of the cosines beside them."""

    @property
    def counts(self) -> list[float]:
        """How many frequencies there may be: one for each channel, or pair; of several axes of places a part each."""
        several = [self.channels] if self.are_alone and self.axes < 2 else [self.channels, self.channels / 2]
        return [each / part for each in several for part in ((1,) if self.axes < 2 else (1, self.axes, 2 * self.axes))]


def sinusoid_findings(base: Trace, evidence: Evidence) -> Iterator[Finding]:
    """A table whose frequencies are others than 10000 says, which stands in the code.

    Where 1/10000 stands there instead, it may be of something else: then it is only asked whether there are several.

    Args:
        base: a run.
        evidence: of one of its attentions.
    """
    if not {BASE, 1 / BASE} & evidence.numbers:
        return
    streams = [base.arguments[each] for each in evidence.base.streams if each in base.arguments]
    # Where tokens are the rows of projections, as behind convolutions, they are made of what the call was handed.
    of_tokens = base.made_of(each.storage for each in streams or base.arguments.values())
    for operation in base:
        if not operation.is_addition:
            continue
        for one, table in (operation.inputs, operation.inputs[::-1]):
            if one.storage not in of_tokens or table.storage in of_tokens or table.learned:
                continue
            for each in itertools.chain(_sinusoids(table.data), _sinusoids_of_the_whole(base, table)):
                if not each.is_one and BASE not in evidence.numbers:
                    continue
                said = _said(each, evidence.numbers)
                if said:
                    message = f"the frequencies of the table that is added to the tokens {said}"
                    yield Finding("violation", "sinusoid-frequencies", "positions", message, operation.location)
                    return


def _sinusoids_of_the_whole(base: Trace, rows: TensorRecord) -> Iterator[_Sinusoids]:
    """Those of the table that a few rows are of, where these are too few to show their frequencies."""
    if rows.data.ndim < 2 or sum(size >= MIN_PLACES for size in rows.shape) > 1:
        return
    storages = {rows.storage}
    for operation in reversed(base.operations):
        if operation.name in _LOOKS_UP and any(each.storage in storages for each in operation.outputs):
            storages.add(operation.inputs[0].storage)
    views = (each for operation in base for each in operation.inputs if each.storage in storages and not each.learned)
    whole = max(views, key=lambda each: each.data.numel(), default=rows)
    if whole.shape[-1] == rows.shape[-1] and whole.data.ndim > 1:
        places = whole.data.reshape(-1, whole.shape[-1])[:MOST_PLACES]
        yield from (each for each in _sinusoids(places) if each.channels == rows.shape[-1])


def _said(table: _Sinusoids, numbers: Collection[float]) -> str:
    """What is wrong with the frequencies of a table; empty where nothing is."""
    first, second = table.frequencies[:2]
    ratio = second / max(first, 1e-12)
    if table.is_half_empty:
        return "are of half of its channels: every second one is 0 at every place, as where sines were written over"
    if table.is_one:
        return f"are one and the same, {first:.3g}, in all {table.moving} channels: with {BASE:g} they fall from 1"
    if table.are_twice:
        return "stand in the sines, or the cosines, alone: each channel is there twice, the same at every place"
    if ratio < 1 and _is_geometric(table.frequencies, ratio):
        exponents = [1 / each for count in table.counts for each in (count, count - 1) if each >= 1]
        bases = [each for each in numbers if each > 1]
        if any(abs(math.log(ratio) / math.log(base) + each) < CLOSE * each for base in bases for each in exponents):
            return ""
        if table.are_alone and abs(math.log(ratio) / math.log(BASE) + 2 / table.channels) < 2 * CLOSE / table.channels:
            return (
                f"fall by {BASE:g}^(-2/{table.channels}) from channel to channel, not from pair to pair: the sine and "
                "the cosine of a pair have different ones"
            )
        wanted = BASE ** (-2 * table.axes / table.channels)
        listed, right = (", ".join(f"{first * each**at:.3g}" for at in range(3)) for each in (ratio, wanted))
        return f"are {listed}, ...: with {BASE:g} and {table.channels} channels they are {right}, ..."
    ratio = _growth(table.frequencies)
    multiples = [abs(math.remainder(first * each, 2 * math.pi)) for each in range(1, len(table.frequencies) + 1)]
    if all(abs(one - other) < CLOSE for one, other in zip(table.frequencies, multiples, strict=True)):
        return f"are multiples of {first:.3g}: with {BASE:g} and the exponential they fall from 1"
    listed = ", ".join(f"{first * ratio**each:.3g}" for each in range(3))
    if ratio:
        return f"grow from pair to pair, {listed}, ...: with {BASE:g} they fall from 1"
    for each in table.by_parity:
        ratio = _growth(each) if len(each) > SEVERAL else 0.0
        if ratio:
            listed = ", ".join(f"{each[0] * ratio**at:.3g}" for at in range(3))
            return f"grow in every second channel alone, {listed}, ...: with {BASE:g} they fall from 1"
    return ""


def _sinusoids(table: Tensor) -> Iterator[_Sinusoids]:
    """A table along each axis of which the channels are sines, where some are."""
    if not table.is_floating_point():
        return
    long = [axis for axis, size in enumerate(table.shape) if size >= MIN_PLACES]
    for places, channels in itertools.permutations(long, 2):
        others = [axis for axis in range(table.ndim) if axis not in (places, channels)]
        rows = (
            table.permute(places, channels, *others)
            .reshape(table.shape[places], table.shape[channels], -1)[..., 0]
            .double()
        )
        empty = (rows == 0).all(0)
        is_half_empty = any(bool(empty[start::2].all()) and not bool(empty[1 - start :: 2].any()) for start in (0, 1))
        pairs = (rows[:, 0::2], rows[:, 1::2]), rows.tensor_split(2, 1)
        are_twice = rows.shape[1] % 2 == 0 and any(torch.equal(one, other) for one, other in pairs)
        moving = ((rows - rows[:1]).abs().amax(0) > CLOSE).nonzero().flatten()
        rows = rows[:, moving]
        if rows.shape[1] < SEVERAL:
            continue
        middle, around = rows[1:-1], rows[2:] + rows[:-2]
        twice = (middle * around).sum(0) / (middle * middle).sum(0).clamp(min=1e-12)
        if float((around - twice * middle).abs().max()) > ROUNDED * float(rows.abs().max()):
            continue
        measured = (twice / 2).clamp(-1, 1).acos()
        found = _different(measured)
        are_close = float(measured.max() - measured.min()) <= ROUNDED
        is_one = are_close and rows.shape[1] >= max(MANY_CHANNELS, table.shape[channels] - PAIR)
        if len(found) >= SEVERAL or is_one:
            axes = sum(table.shape[axis] > 1 for axis in (places, *others[-1:]))
            are_alone = int(((measured - found[0]).abs() <= CLOSE).sum()) == 1
            yield _Sinusoids(
                found[: SEVERAL + 1] * (1 + is_one),
                table.shape[channels],
                axes,
                rows.shape[1],
                is_half_empty=is_half_empty,
                are_twice=are_twice and not is_one,
                is_one=is_one,
                are_alone=are_alone,
                by_parity=[_different(measured[moving % PAIR == each])[: SEVERAL + 1] for each in range(PAIR)],
            )


def _different(measured: Tensor) -> list[float]:
    """The frequencies of some channels in their order, each once."""
    found: list[float] = []
    for each in measured.tolist():
        if all(abs(each - known) > CLOSE for known in found):
            found.append(each)
    return found


def _growth(frequencies: Sequence[float]) -> float:
    """By which each frequency is larger than the one before it; 0 where they fall, or nothing tells.

    One of more than half a turn from place to place is seen less its full turns, to one side or the other.
    """
    first, second = frequencies[:2]
    if max(frequencies) < 1 + CLOSE or sorted(frequencies, reverse=True) == [*frequencies]:
        return 0.0
    for turns, sign in itertools.product(range(TURNS), (1, -1)):
        ratio = (2 * math.pi * turns + sign * second) / max(first, 1e-12)
        if ratio > 1 + CLOSE and _is_geometric(frequencies, ratio):
            return ratio
    return 0.0


def _is_geometric(frequencies: Sequence[float], ratio: float) -> bool:
    """Whether each is the one before it times a ratio, but for full turns."""
    wanted = [frequencies[0] * ratio**each for each in range(len(frequencies))]
    folded = [abs(math.remainder(each, 2 * math.pi)) for each in wanted]
    allowed = [CLOSE * (1 + each * ratio ** (each - 1)) for each in range(len(frequencies))]  # the ratio is rounded
    return all(abs(one - other) < most for one, other, most in zip(frequencies, folded, allowed, strict=True))
