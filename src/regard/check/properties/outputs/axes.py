"""The axes of an output: samples and tokens stand where the input has them, and as many of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.outputs.documented_axes import written_shapes
from regard.check.properties.outputs.heads import MovedSums
from regard.check.roles.owners import SEVERAL
from regard.check.target import Invocation, Stream

__all__ = ["output_axis_findings"]

_TOKENS = re.compile(r"[tlsn]|\w*(seq|len|time|tokens|frames|steps|patches)\w*", re.I)
Places = set[int] | None


def output_axis_findings(
    invocation: Invocation, several: Sequence[Evidence], frozen: Mapping[int, Tensor]
) -> Iterator[Finding]:
    """Heads in the place of samples or of tokens, and tokens in the place of channels.

    Shown by moving the weighted sums of one query, with all others held, where the output has other sizes than the
    input and so no place that is a token's from the first.

    Args:
        invocation: the call.
        several: its attentions.
        frozen: the weighted sums of all of them, by the index of their operation.
    """
    for evidence in several:
        table = evidence.base
        trace = table.instance.run.trace
        is_of_tokens = table.whole and table.query.stream.numel() > 0 and table.streams == tuple(evidence.roles)
        if not trace.outputs or not is_of_tokens:
            return
        if bool((table.query.sample == SEVERAL).any()) or len(set(table.query.stream.tolist())) != 1:
            return
        stream = invocation.streams[int(table.query.stream[0])]
        shape = invocation.arguments[stream.argument].shape
        output = trace.outputs[0].shape
        is_known = stream.head_axis is None and stream.batch_axis is not None and len(stream.token_axes) > 0
        if not is_known or len(output) < 3:
            return
        moved = _Moved(MovedSums(invocation, evidence, stream, shape, frozen), stream, shape)
        is_plain = len(stream.token_axes) == 1 and len(shape) == len(output) == len(set(shape)) == 3
        message = _misplaced(moved, output, table.num_heads, len(several), invocation) if is_plain else ""
        message = message or _without_samples(moved, output)
        if message:
            yield Finding("violation", "output-axes", "heads joined", message, table.instance.sums_location)
            return


class _Moved:
    """Where the output changes with what a query of a head read."""

    def __init__(self, sums: MovedSums, stream: Stream, shape: torch.Size) -> None:
        assert stream.batch_axis is not None
        self.sums = sums
        self.batch, self.token = stream.batch_axis, stream.token_axes[0]
        self.num_samples, self.num_tokens = shape[self.batch], shape[self.token]

    def places(self, axis: int, *, sample: int = 0, token: int = 1, head: int = 0) -> Places:
        """The places along an axis of the output; None where that is not known."""
        rows = self.sums.rows(sample, [token], head)
        changes = self.sums.changes(self.sums.given(rows)) if bool(rows.any()) else None
        if not changes or not bool(changes[0].any()):
            return None
        others = [each for each in range(changes[0].ndim) if each != axis]
        return set(changes[0].any(dim=others).nonzero().flatten().tolist())


def _misplaced(
    moved: _Moved, output: tuple[int, ...], num_heads: int, num_attentions: int, invocation: Invocation
) -> str:
    """What stands in the place of what; empty where all is in its place or nothing is known."""
    samples, tokens = output[moved.batch], output[moved.token]
    count = num_heads if num_attentions == 1 else num_attentions
    heads = "heads" if num_heads > 1 or num_attentions > 1 else "attention"
    if count > 1 and samples == count * moved.num_samples and tokens == moved.num_tokens:
        found = [moved.places(moved.batch, sample=each) for each in range(moved.num_samples)]
        if _are_apart(found) and all(moved.places(moved.token, token=each) == {each} for each in (0, tokens - 1)):
            which = f"has {samples} samples where {moved.num_samples} were handed over"
            return f"the output {which}: its {count} {heads} are joined along the samples, not along the channels"
    if count > 1 and tokens == count * moved.num_tokens and samples == moved.num_samples:
        found = [moved.places(moved.token, token=each) for each in range(moved.num_tokens)]
        if _are_apart(found):
            which = f"has {tokens} tokens where {moved.num_tokens} were handed over"
            return f"the output {which}: its {count} {heads} are joined along the tokens, not along the channels"
    if samples != moved.num_samples:
        return ""
    if num_attentions == 1 and num_heads > 1 and tokens == num_heads:
        found = [moved.places(moved.token, head=each) for each in range(num_heads)]
        other = moved.places(moved.token, token=0, head=num_heads - 1)
        if found == [{each} for each in range(num_heads)] and other == {num_heads - 1}:
            return (
                f"row 0 of a sample's output is made of head 0 of all tokens, and so on: {num_heads} rows are no tokens"
            )
    (channel,) = {0, 1, 2} - {moved.batch, moved.token}
    if output[channel] == moved.num_tokens != tokens and not _says_so(invocation, channel):
        found = [moved.places(channel, token=each) for each in range(moved.num_tokens)]
        if found == [{each} for each in range(moved.num_tokens)]:
            which = f"axis {channel} of the output, and axis {moved.token} of the input"
            return f"the tokens are {which}: the channels of a token's output stand where the tokens should"
    return ""


def _without_samples(moved: _Moved, output: tuple[int, ...]) -> str:
    """That no axis of the output is of samples; empty where one is, or nothing is known."""
    wanted = [{each} for each in range(moved.num_samples)]
    if moved.num_samples < 2:
        return ""
    for axis, size in enumerate(output):
        found = [moved.places(axis, sample=each) for each in range(moved.num_samples)]
        if None in found or (size == moved.num_samples and found == wanted):
            return ""
    shape = ", ".join(map(str, output))
    return f"no axis of the output ({shape}) is of the {moved.num_samples} samples that were handed over"


def _are_apart(found: Sequence[Places]) -> bool:
    """Whether each has one place, and another one."""
    return all(each is not None and len(each) == 1 for each in found) and len(set[int]().union(*found)) == len(found)  # type: ignore[arg-type]


def _says_so(invocation: Invocation, axis: int) -> bool:
    """Whether a comment or the documentation writes a shape with the tokens along this axis."""
    return any(len(each) == 3 and _TOKENS.fullmatch(each[axis]) for each in written_shapes(invocation.target))
