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

_AXIS = r"\w+(?:\s?\*\s?\w+)?"
_SHAPE = re.compile(rf"[(\[]\s*({_AXIS}(?:\s*(?:,|x|\u00d7)\s*{_AXIS}){{1,2}})\s*[)\]]")
_COMMENT = re.compile(r"#.*")
_BETWEEN = re.compile(r"\s*(?:,|\u00d7|\bx\b)\s*")
_BATCH = re.compile(r"b|bs|bsz|batch(_?size)?", re.I)
_SAMPLES_OR_TOKENS = re.compile(r"n", re.I)
"""The samples in (N, L, C), and the tokens in (B, N, C): alone the letter tells neither."""
_TOKENS = re.compile(
    r"[tls](?:_?[qk1-9])?|n_?[qk]|\w*(seq|len|time|tokens|patches|frames|pixels)\w*|h\s?\*?\s?w|height\s?\*\s?width",
    re.I,
)
_OTHERS = re.compile(r"mask|pad(?!ded (?:to|with|at|on|up|by)\b)|weights|scores|cache|state|bias", re.I)
"""Lines that tell the shape of something else, and not of sequences that are padded to one length."""
_EQUATION = re.compile(r"[\"']\s*([a-z]{3,})\s*,\s*([a-z]{3,})\s*->\s*([a-z]{3,})\s*[\"']", re.I)
_ACROSS_THE_BATCH = re.compile(
    r"(across|between|over)\s+(the\s+)?(batch|samples|data\s?points|rows)|inter-?sample", re.I
)


def documented_axes_findings(invocation: Invocation) -> list[Finding]:
    """A violation where attention runs over the axis that the documentation, or the code, calls the batch."""
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
                if _are_samples_of_tokens(names[batch], names[tokens]):
                    orders[batch] = names
    if set(orders) == {stream.token_axes[0]}:  # not the order that was found, nor both
        (names,) = orders.values()
        told = f"its documentation says ({', '.join(names)})"
    elif not orders and stream.batch_axis == 1 and _calls_it_batch_first(invocation):
        told = f"its code calls the first axis of {stream.argument} the batch"
    else:
        return []
    message = f"{told}, but attention runs over axis {stream.token_axes[0]} of {stream.argument}, the batch, and axis "
    message += f"{stream.batch_axis} stays apart"
    return [Finding("violation", "axes-as-documented", "scores", message)]


def _are_samples_of_tokens(batch: str, tokens: str) -> bool:
    """Whether two axes are named as that of the samples and that of the tokens."""
    is_known = _TOKENS.fullmatch(tokens) is not None
    if _BATCH.fullmatch(batch):
        return is_known or _SAMPLES_OR_TOKENS.fullmatch(tokens) is not None
    return is_known and _SAMPLES_OR_TOKENS.fullmatch(batch) is not None


def _calls_it_batch_first(invocation: Invocation) -> bool:
    """Whether a line unpacks the shape of a sequence as (batch, tokens, ...), or a comment writes it behind its name.

    Not where another one has the tokens first, nor where the module says that samples attend to one another.
    """
    source = source_of(invocation.target)
    if _ACROSS_THE_BATCH.search(source):
        return False
    found = set[bool]()
    are_nodes = _pairs_the_first_axis(source)
    for stream in invocation.streams:
        axes, name = invocation.arguments[stream.argument].ndim, re.escape(stream.argument)
        # A line of a comment, or one of the signature: what stands behind other code is of what that makes.
        comment = rf"#+[^#\n(\[]*(?<![\w.]){name}(?![\w.(\[])"
        parameter = rf"(?:def\b.*)?(?<![\w.]){name}\b\s*(?::[^=#\n]*)?[,)].*#"
        before = before_reordering(source, stream.argument)
        comments = re.findall(rf"^\s*(?:{comment}|{parameter}).*$", before, re.M)
        told = [each for line in comments if not _OTHERS.search(line) for each in _in_comments(line)[:1]]
        for names in map(_BETWEEN.split, [*_unpacked(source, stream.argument), *told]):
            if are_nodes and _SAMPLES_OR_TOKENS.fullmatch(names[0]):
                continue  # the nodes of a graph, in each step of time
            if len(names) == axes > 2 and not _TOKENS.fullmatch(names[2]):
                found |= {is_first for is_first in (True, False) if _are_in_order(names, is_first=is_first)}
    return found == {True}


def _pairs_the_first_axis(source: str) -> bool:
    """Whether einsum is told that the first axes meet in pairs, and the second is one: "qthd,kthd->qkth"."""
    return any(
        one[0] != other[0] and one[1] == other[1] and {one[0], other[0], one[1]} <= {*made}
        for one, other, made in _EQUATION.findall(source)
    )


def _are_in_order(names: list[str], *, is_first: bool) -> bool:
    return _are_samples_of_tokens(*(names[:2] if is_first else names[1::-1]))


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
    unpacked = _unpacked(source, stream.argument)
    source = before_reordering(source, stream.argument)
    single = re.findall(rf"(\w+)\s*=\s*{name}\.(?:shape\[|size\(\s*)(\d)", source)
    axes = invocation.arguments[stream.argument].ndim
    named = [names for each in (*comments, *unpacked) if len(names := _BETWEEN.split(each)) == axes]
    return [*named, *(["_"] * int(axis) + [one] for one, axis in single)]


def _unpacked(source: str, argument: str) -> list[str]:
    """What the shape of an argument is unpacked into, by each line that does, before its axes are reordered."""
    shape = rf"{re.escape(argument)}\.(?:shape|size\(\))"
    source = before_reordering(source, argument)
    return re.findall(rf"^\s*(\w+(?:\s*,\s*\w+)+)\s*=\s*{shape}\s*(?:#.*)?$", source, re.M)


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
