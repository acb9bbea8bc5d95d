"""The order of axes that a documentation promises, and the one that attention runs over."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream
from regard.check.target.argument import source_of
from regard.check.target.documented_shapes import before_reordering, documented_letters

__all__ = ["documented_axes_findings", "named_axes_differ", "names_the_batch", "written_shapes"]

_SHAPE = re.compile(r"[(\[]\s*(\w+(?:\s*(?:,|x|\u00d7)\s*\w+){1,2})\s*[)\]]")
_COMMENT = re.compile(r"#.*")
_BETWEEN = re.compile(r"\s*(?:,|\u00d7|\bx\b)\s*")
_BATCH = re.compile(r"b|bs|bsz|batch(_?size)?", re.I)
_BATCH_BESIDE_TOKENS = re.compile(r"n", re.I)
"""As in (N, L, C): elsewhere the letter may count the tokens."""
_TOKENS = re.compile(r"[tls]|\w*(seq|len|time|tokens)\w*", re.I)
_OTHERS = re.compile(r"mask|pad|weights|scores|cache|state|bias", re.I)
"""Lines that tell the shape of something else."""
_ACROSS_THE_BATCH = re.compile(
    r"(across|between|over)\s+(the\s+)?(batch|samples|data\s?points|rows)|inter-?sample", re.I
)


def documented_axes_findings(invocation: Invocation) -> list[Finding]:
    """A violation where attention runs over the axis that the documentation calls the batch."""
    stream = invocation.streams[0]
    shape = invocation.arguments[stream.argument].shape
    axes = len(shape)
    if len(stream.token_axes) != 1 or {stream.batch_axis, stream.token_axes[0]} != {0, 1}:
        return []
    if shape[stream.token_axes[0]] == 1:  # the one vector of a state, in front of which an axis of layers may stand
        return []
    orders = {}
    for names in _documented(invocation.target):
        if len(names) == axes and not (axes == 3 and _TOKENS.fullmatch(names[2])):
            for batch, tokens in ((0, 1), (1, 0)):
                is_batch = _BATCH.fullmatch(names[batch]) or _BATCH_BESIDE_TOKENS.fullmatch(names[batch])
                if is_batch and _TOKENS.fullmatch(names[tokens]):
                    orders[batch] = names
    if set(orders) != {stream.token_axes[0]}:  # nothing is said, or the order that was found, or both
        return []
    (names,) = orders.values()
    message = f"its documentation says ({', '.join(names)}), but attention runs over axis {stream.token_axes[0]} of "
    message += f"{stream.argument}, the batch, and axis {stream.batch_axis} stays apart"
    return [Finding("violation", "axes-as-documented", "scores", message)]


def named_axes_differ(invocation: Invocation) -> bool:
    """Whether an axis that attention was seen to run over is named as another one.

    By the code or a comment in it, as one of the batch; or by the documentation, which names another axis of tokens.
    """
    source = source_of(invocation.target)
    for stream in invocation.streams:
        told = documented_letters(source, stream.argument)
        is_told = len(told) == invocation.arguments[stream.argument].ndim and told.count("t") == 1
        if is_told and stream.token_axes and told.index("t") not in stream.token_axes:
            return True
    return any(
        _BATCH.fullmatch(each[axis])
        for stream in invocation.streams
        for each in _named(invocation, stream)
        for axis in stream.token_axes
        if axis < len(each)
    )


def names_the_batch(invocation: Invocation) -> bool:
    """Whether the code, or a comment in it, calls an axis that was taken for the batch by that name."""
    return any(
        _BATCH.fullmatch(each[stream.batch_axis])
        for stream in invocation.streams
        for each in _named(invocation, stream)
        if stream.batch_axis is not None and stream.batch_axis < len(each)
    )


def _named(invocation: Invocation, stream: Stream) -> list[list[str]]:
    """The names of the axes of a sequence, where a line unpacks or reads its shape, or a comment writes one."""
    source, name = source_of(invocation.target), re.escape(stream.argument)
    comments = _in_comments(source)
    source = before_reordering(source, stream.argument)
    unpacked = re.findall(rf"^\s*(\w+(?:\s*,\s*\w+)+)\s*=\s*{name}\.(?:shape|size\(\))\s*$", source, re.M)
    single = re.findall(rf"(\w+)\s*=\s*{name}\.(?:shape\[|size\(\s*)(\d)", source)
    axes = invocation.arguments[stream.argument].ndim
    named = [names for each in (*comments, *unpacked) if len(names := _BETWEEN.split(each)) == axes]
    return [*named, *(["_"] * int(axis) + [one] for one, axis in single)]


def written_shapes(target: Any) -> list[list[str]]:
    """The names of the axes of every shape that a comment in the code, or its documentation, writes."""
    return [*(_BETWEEN.split(each) for each in _in_comments(source_of(target))), *_documented(target)]


def _in_comments(source: str) -> list[str]:
    return [each for comment in _COMMENT.findall(source) for each in _SHAPE.findall(comment)]


def _documented(target: Any) -> Iterator[list[str]]:
    """The names of the axes in its own documentation, of its class and of its call; none where it is of the batch."""
    kind = type(target) if isinstance(target, nn.Module) else target
    if str(getattr(kind, "__module__", "")).partition(".")[0] == "torch":
        return
    call = vars(kind).get("forward") if inspect.isclass(kind) else None
    text = "\n".join(each.__doc__ or "" for each in (kind, call) if each is not None)
    if _ACROSS_THE_BATCH.search(text):
        return
    for line in text.splitlines():
        if not _OTHERS.search(line):
            yield from (_BETWEEN.split(shape) for shape in _SHAPE.findall(line))
