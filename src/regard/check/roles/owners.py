"""Which token, sample and head each number of a tensor is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.check.roles.influence import Influence, influence_of
from regard.check.target import Invocation
from regard.check.trace.operation import Trace

__all__ = ["NONE", "SEVERAL", "Owners", "are_of_own_tokens", "owners"]

NONE, SEVERAL = -1, -2
"""Instead of the number of a token or sample: it depends on none, or on more than one."""


@dataclass(frozen=True, eq=False)
class Owners:
    """For each of some numbers, the one token and sample that it depends on; `NONE` or `SEVERAL` otherwise."""

    stream: Tensor
    """The number of the stream among those of the call."""
    token: Tensor
    sample: Tensor
    head: Tensor


def owners(depends: Tensor, influence: Influence, streams: Sequence[str]) -> Owners:
    """The owner of each number.

    Args:
        depends: (sources, numbers).
        influence: whose sources.
        streams: the names of the streams, in order.
    """
    numbers = {name: at for at, name in enumerate(streams)}
    found = {}
    for kind in ("token", "sample", "head"):
        rows = influence.sources(kind)
        labels = torch.tensor([influence.runs[row][0].index for row in rows], dtype=torch.long)
        of_kind = depends[rows]
        if kind == "sample" and len(rows):  # the same one of several streams is one sample
            labels, which = torch.unique(labels, return_inverse=True)
            of_kind = torch.stack([of_kind[which == at].any(0) for at in range(len(labels))])
        found[kind] = _single(of_kind, labels)
    rows = influence.sources("token") + influence.sources("sample")
    labels = torch.tensor([numbers[influence.runs[row][0].stream] for row in rows], dtype=torch.long)
    by_stream = torch.stack([depends[rows][labels == at].any(0) for at in range(len(streams))])
    stream = _single(by_stream, torch.arange(len(streams)))
    return Owners(stream, found["token"], found["sample"], found["head"])


def are_of_own_tokens(invocation: Invocation, trace: Trace, place: tuple[int, int], *, output: bool = False) -> bool:
    """Whether each number somewhere is of one token of one sample, and they are of several tokens.

    Args:
        invocation: the call.
        trace: its run.
        place: the index of an operation, and the number among the tensors that it takes.
        output: the number is that among those that it returns.
    """
    influence = influence_of(invocation, trace, keep=lambda source: source.kind in ("token", "sample"))
    depends = influence.of(*place, output=output).flatten(1)
    of = owners(depends, influence, [each.argument for each in invocation.streams])
    return bool((of.token >= 0).all() and (of.sample >= 0).all()) and len(torch.unique(of.token)) > 1


def _single(depends: Tensor, labels: Tensor) -> Tensor:
    if not len(labels):
        return torch.full(depends.shape[1:], NONE)
    count = depends.sum(0)
    which = labels[depends.to(torch.uint8).argmax(0)]
    return torch.where(count == 1, which, torch.where(count == 0, NONE, SEVERAL))
