"""Which tokens, samples and heads of the inputs each number of a run depends on: found by changing one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.check.target import Invocation, Stream
from regard.check.trace.operation import Trace
from regard.check.trace.recorder import record

__all__ = ["Influence", "Source", "changed", "is_chosen", "record_invocation", "selections", "stream_sizes"]

RELATIVE_CHANGE = 1e-11
"""Of the largest number of a tensor; a smaller change is rounding."""
MAX_TOKENS = 64
"""Of a stream: four windows of 4 x 4. Of longer ones, such as the pixels of a picture, no single token is changed."""
SELECTIONS = frozenset({"topk", "sort", "argsort", "argmax", "argmin", "max", "min"})
"""Operations that return places."""


@dataclass(frozen=True)
class Source:
    """A part of the inputs."""

    stream: str
    """The argument."""
    kind: str
    """"sample", "token" or "head"."""
    index: int


@dataclass(eq=False)
class Influence:
    """A run, and the same run with one part of the inputs changed at a time."""

    base: Trace
    runs: list[tuple[Source, Trace]] = field(default_factory=list)
    _cache: dict[tuple[int, int, bool], Tensor] = field(default_factory=dict)

    def of(self, operation: int, number: int, *, output: bool = False) -> Tensor:
        """Whether each number of a tensor depends on each source: (sources, *shape of the tensor).

        Args:
            operation: the index of an operation.
            number: which of the tensors that it takes, or returns.
            output: whether it is one that it returns.
        """
        key = (operation, number, output)
        if key not in self._cache:
            mine = self._tensor(self.base, key)
            self._cache[key] = _differ(mine, [self._tensor(run, key) for _, run in self.runs])
        return self._cache[key]

    @staticmethod
    def _tensor(trace: Trace, key: tuple[int, int, bool]) -> Tensor:
        operation, number, output = key
        taken = trace.operations[operation]
        return (taken.outputs if output else taken.inputs)[number].data

    def returned(self, number: int) -> Tensor:
        """The same of a tensor that the run returned."""
        mine = self.base.outputs[number].data
        return _differ(mine, [run.outputs[number].data for _, run in self.runs])

    def sources(self, kind: str) -> list[int]:
        """The numbers of the sources of a kind."""
        return [number for number, (source, _) in enumerate(self.runs) if source.kind == kind]


def is_changed(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have other shapes or hold other numbers."""
    return one.shape != other.shape or bool(differs(one, other).any())


def differs(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors of one shape hold other numbers."""
    return _differ(one, [other])[0]


def _differ(one: Tensor, others: Sequence[Tensor]) -> Tensor:
    """(others, *shape of the tensor): where each of the others holds other numbers."""
    if any(each.shape != one.shape for each in others):
        if len(others) > 1:
            return torch.cat([_differ(one, [each]) for each in others])
        return torch.ones(1, *one.shape, dtype=torch.bool)
    if not others:
        return torch.zeros(0, *one.shape, dtype=torch.bool)
    several = torch.stack([*others])
    if not (one.is_floating_point() or one.is_complex()):
        return several != one
    finite = one.isfinite()
    top = one[finite].abs().max().item() if bool(finite.any()) else 0.0
    gap = (several - one).abs() > RELATIVE_CHANGE * max(top, 1e-300)
    same = (several == one) | (several.isnan() & one.isnan())
    return torch.where(finite & several.isfinite(), gap, ~same)


def stream_sizes(invocation: Invocation, stream: Stream) -> tuple[int, int, int]:
    """How many samples, tokens and heads a stream has; 1 where it has no such axis."""
    shape = invocation.arguments[stream.argument].shape
    tokens = 1
    for axis in stream.token_axes:
        tokens *= shape[axis]
    return (
        shape[stream.batch_axis] if stream.batch_axis is not None else 1,
        tokens,
        shape[stream.head_axis] if stream.head_axis is not None else 1,
    )


def changed(invocation: Invocation, source: Source) -> dict[str, Any]:
    """The arguments with one part of a stream drawn anew."""
    stream = next(each for each in invocation.streams if each.argument == source.stream)
    tensor = invocation.arguments[stream.argument]
    arguments = dict(invocation.arguments)
    fresh = _fresh(stream.argument, 1 + source.index, invocation)
    where = torch.zeros(tensor.shape, dtype=torch.bool)
    if source.kind == "token":
        selected: list[Any] = [slice(None)] * tensor.ndim
        place = source.index  # torch.unravel_index would import sympy
        for axis in reversed(stream.token_axes):
            place, selected[axis] = divmod(place, tensor.shape[axis])
        where[tuple(selected)] = True
    else:
        whole = stream.batch_axis if source.kind == "sample" else stream.head_axis
        assert whole is not None
        where.select(whole, source.index).fill_(True)
    arguments[stream.argument] = torch.where(where, fresh, tensor)
    return arguments


def _fresh(argument: str, seed: int, invocation: Invocation) -> Tensor:
    tensor: Tensor = invocation.arguments[argument]
    generator = torch.Generator().manual_seed(1000 + seed)
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
    return invocation.other_ids(argument, generator)


def record_invocation(
    invocation: Invocation,
    arguments: Mapping[str, Any] | None = None,
    *,
    frozen: Mapping[int, Tensor] | None = None,
    lines: bool = False,
) -> Trace:
    """The trace of one call."""
    given = dict(invocation.arguments if arguments is None else arguments)
    return record(
        lambda watch: invocation.run(given, watch=watch),
        outputs=invocation.outputs,
        frozen=frozen,
        lines=lines,
    )


def selections(base: Trace) -> dict[int, Tensor]:
    """What a run chose by its numbers, such as the queries with the largest scores: who is chosen tells of no one.

    By the index of the operation that returned the places.
    """
    return {
        each.index: next(one.data for one in each.outputs if one.data.dtype == torch.long)
        for each in base
        if each.name in SELECTIONS
        and each.inputs[0].data.is_floating_point()
        and any(one.data.dtype == torch.long for one in each.outputs)
    }


def is_chosen(base: Trace, operation: int, since: int) -> bool:
    """Whether what an operation takes was looked up at places that the run chose by its numbers.

    Args:
        base: the run.
        operation: its index.
        since: the index of the first operation that may look it up: what was chosen before is another layer's.
    """
    places = {record.storage for index in selections(base) for record in base.operations[index].outputs}
    looked_up: set[int] = set()
    for each in base.operations[: operation + 1] if places else ():
        is_made_of_it = any(one.storage in looked_up for one in each.inputs)
        takes_places = any(one.storage in places and one.data.dtype == torch.long for one in each.inputs)
        if takes_places and not any(one.data.is_floating_point() for one in each.outputs):
            places.update(one.storage for one in each.outputs)
        elif is_made_of_it or (takes_places and each.index >= since):
            looked_up.update(one.storage for one in each.outputs)
    return any(one.storage in looked_up for one in base.operations[operation].inputs)


def influence_of(
    invocation: Invocation,
    base: Trace,
    *,
    frozen: Mapping[int, Tensor] | None = None,
    keep: Callable[[Source], bool] = lambda source: True,
) -> Influence:
    """Change every token, sample and head in turn.

    A changed run that takes other steps than the first one tells nothing of them, and is left out.
    """
    influence = Influence(base)
    frozen = {**selections(base), **(frozen or {})}
    for stream in invocation.streams:
        samples, tokens, heads = stream_sizes(invocation, stream)
        for kind, count in (("sample", samples), ("token", tokens), ("head", heads)):
            if kind == "token" and tokens > MAX_TOKENS:
                continue
            if (kind == "head" and stream.head_axis is None) or (kind == "sample" and stream.batch_axis is None):
                continue
            for index in range(count):
                source = Source(stream.argument, kind, index)
                if not keep(source):
                    continue
                run = record_invocation(invocation, changed(invocation, source), frozen=frozen)
                if run.same_operations(base):
                    influence.runs.append((source, run))
    return influence
