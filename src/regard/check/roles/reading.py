"""Weights that are read off the output: attention is linear in its values, however its code computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.roles.owners import Owners
from regard.check.roles.table import AttentionTable, ScoreLayout, ValueTable
from regard.check.target import Invocation, Stream
from regard.check.target.errors import Failed

__all__ = ["reader_of"]

EXACT = 1e-8
"""Of the largest number of an output: what the weights that were read may miss of it."""
MAX_RUNS = 64
"""For the weights of one input, or the order of the channels."""


@dataclass(frozen=True, eq=False)
class Reader:
    """A function of queries, keys and values whose weights can be read."""

    invocation: Invocation
    q: Stream
    k: Stream
    v: Stream

    def table(self, run: TaggedRun, arguments: Mapping[str, Any]) -> AttentionTable | None:
        """Every query and key with the weight that the value of the key has in the output of the query.

        Args:
            run: of the call.
            arguments: of the call whose weights are read.

        Returns:
            The table; None where no weights, the same for all channels of a head, give the output.
        """
        by_channel = self._by_channel(arguments)
        if by_channel is None:
            return None
        starts = _starts(by_channel)
        heads = len(starts)
        if not heads or (heads > 1 and by_channel.shape[1] > 1):
            return None
        weights = by_channel[..., starts].squeeze(1).movedim(-1, 1) if heads > 1 else by_channel[..., 0]
        q, k = (_with_heads(_canonical(arguments[each.argument], each), heads) for each in (self.q, self.k))
        if q is None or k is None or q.shape[-1] != k.shape[-1] or q.shape[1] % k.shape[1]:
            return None
        return _table(run, weights, q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))

    def channel_order(self) -> list[int] | None:
        """For each channel of the output, the one of the values that it holds; None where it holds several or none."""
        arguments = self.invocation.arguments
        values = _drawn(_canonical(arguments[self.v.argument], self.v).shape)
        if values.shape[-1] > MAX_RUNS:
            return None
        found: dict[int, int] = {}
        for channel in range(values.shape[-1]):
            alone = torch.zeros_like(values)
            alone[..., channel] = values[..., channel]
            output = self._output(arguments, alone)
            if output is None:
                return None
            (held,) = ((output != 0).flatten(0, -2).any(0).nonzero().flatten().tolist(),)
            if len(held) != 1 or held[0] in found:
                return None
            found[held[0]] = channel
        return [found[channel] for channel in sorted(found)]

    def _by_channel(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """(samples, heads, queries, keys, channels): the weights, if they give the output for other values too."""
        shape = _canonical(arguments[self.v.argument], self.v).shape
        tokens = shape[2]
        if tokens > MAX_RUNS:
            return None
        read = []
        for token in range(tokens):
            alone = torch.zeros(shape, dtype=torch.float64)
            alone[:, :, token] = 1.0
            read.append(self._output(arguments, alone))
        values = _drawn(shape)
        output = self._output(arguments, values)
        known = [each for each in read if each is not None]
        if output is None or len(known) < tokens or output.shape[1] % values.shape[1]:
            return None
        weights = torch.stack(known, -2)
        expected = (weights * values.repeat_interleave(output.shape[1] // values.shape[1], 1)[:, :, None]).sum(-2)
        gap = float((expected - output).abs().max())
        return weights if gap <= EXACT * float(output.abs().max()) else None

    def _output(self, arguments: Mapping[str, Any], values: Tensor) -> Tensor | None:
        """(samples, heads, queries, channels): what the call returns for other values."""
        given = {**arguments, self.v.argument: _laid_out(values, self.v)}
        try:
            outputs = self.invocation.outputs(self.invocation.run(given))
        except Failed:
            return None
        queries = _canonical(arguments[self.q.argument], self.q)
        for each in outputs[:1]:
            if each.is_complex() or each.ndim != len(_axes(self.q)) + 1:
                return None
            made = _canonical(each.detach().double(), self.q)
            if made.shape == (*queries.shape[:-1], values.shape[-1]) and bool(made.isfinite().all()):
                return made
        return None


def reader_of(invocation: Invocation) -> Reader | None:
    """What reads the weights of a call; None where it is no call of a sequence of queries, of keys and of values."""
    streams = {each.role: each for each in invocation.streams}
    if set(streams) != {"q", "k", "v"} or len(invocation.streams) != 3:
        return None
    tensors = {role: invocation.arguments[each.argument] for role, each in streams.items()}
    for role, each in streams.items():
        if len(each.token_axes) != 1 or tensors[role].ndim != len(_axes(each)) + 1:
            return None
    return Reader(invocation, streams["q"], streams["k"], streams["v"])


def _axes(stream: Stream) -> list[int]:
    """The axes of samples, heads and tokens, in this order, of those that there are."""
    return [each for each in (stream.batch_axis, stream.head_axis, *stream.token_axes) if each is not None]


def _canonical(tensor: Tensor, stream: Stream) -> Tensor:
    """A stream as (samples, heads, tokens, channels)."""
    axes = _axes(stream)
    moved = tensor.permute(*axes, *(axis for axis in range(tensor.ndim) if axis not in axes))
    if stream.batch_axis is None:
        moved = moved[None]
    return moved if stream.head_axis is not None else moved[:, None]


def _laid_out(tensor: Tensor, stream: Stream) -> Tensor:
    """The way back."""
    if stream.head_axis is None:
        tensor = tensor[:, 0]
    if stream.batch_axis is None:
        tensor = tensor[0]
    axes = _axes(stream)
    axes += [axis for axis in range(tensor.ndim) if axis not in axes]
    return tensor.permute([axes.index(axis) for axis in range(tensor.ndim)]).contiguous()


def _drawn(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def _starts(by_channel: Tensor) -> list[int]:
    """The first channel of each head: its channels have the same weights. None where heads are not equally wide."""
    changed = (by_channel[..., 1:] - by_channel[..., :-1]).abs().flatten(0, -2).amax(0) > EXACT
    starts = [0, *(changed.nonzero().flatten() + 1).tolist()]
    width = by_channel.shape[-1] // len(starts)
    return starts if starts == list(range(0, by_channel.shape[-1], width)) else []


def _with_heads(tensor: Tensor, heads: int) -> Tensor | None:
    """The channels of one head cut into several."""
    if heads == 1:
        return tensor
    if tensor.shape[-1] % heads or tensor.shape[1] != 1:
        return None
    samples, _, tokens, width = tensor.shape
    return tensor.reshape(samples, tokens, heads, width // heads).transpose(1, 2)


def _table(run: TaggedRun, weights: Tensor, q: Tensor, k: Tensor) -> AttentionTable:
    """One row for each sample, head, query and key."""
    samples, heads, queries, keys = weights.shape
    grid = torch.cartesian_prod(*map(torch.arange, (samples, heads, queries, keys)))
    sample, head, query, key = grid.unbind(-1)
    nothing, unknown = torch.zeros(0), torch.full((len(grid),), float("nan"), dtype=torch.float64)
    no_stream = torch.zeros_like(sample)
    empty = torch.zeros(0, 0, dtype=torch.long)
    q_rows, k_rows = q[sample, head, query].double(), k[sample, head, key].double()
    instance = AttentionInstance(run, [], [], True, steps={each.name for each in run.trace})
    layout = ScoreLayout(instance, torch.full((run.num_tags + 1,), -1), torch.zeros(0, dtype=torch.bool), True)
    return AttentionTable(
        layout,
        (),
        Owners(no_stream, query, sample, head),
        Owners(no_stream, key, sample, head),
        head,
        q_rows,
        k_rows,
        q_rows,
        k_rows,
        q_rows.shape[-1],
        (q_rows * k_rows).sum(-1),
        torch.zeros(len(grid), 0, dtype=torch.float64),
        unknown,
        unknown,
        weights.flatten().double(),
        torch.full((len(grid),), -1),
        torch.zeros(len(grid), dtype=torch.bool),
        ValueTable(empty, nothing, nothing, empty, empty, empty, empty, False, nothing),
    )
