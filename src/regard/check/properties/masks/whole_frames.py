"""Masks by frames, or other parts of a sequence: a token sees its own part whole, and the earlier ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.code import sentences_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of
from regard.check.target import Invocation

__all__ = ["by_whole_frames"]

_FRAME = r"(?:frames?|images?|pictures?|views?|scales?|segments?|groups?)"
_PART = rf"(?:{_FRAME}|blocks?|chunks?)"
_NAMED = re.compile(
    rf"\b{_PART}[- ]?(?:level[- ])?causal|\b{_FRAME}[- ]?wise[- ]+(?:causal|auto-?regressive)"
    rf"|\b(?:causal|auto-?regressive)(?:ly)?\s+(?:\w+\s+)?(?:over|across|between|among|along|by)\s+(?:the\s+)?{_PART}\b",
    re.I,
)
"""In the code, its documentation or its comments. What is computed blockwise may be causal by tokens."""
_OF_TIME = re.compile(
    r"\b(?:causal|auto-?regressive)(?:ly)?\s+(?:\w+\s+)?(?:over|across|between|in|along|by)\s+(?:the\s+)?"
    r"(?:time(?:[- ]?steps?)?|steps?)\b",
    re.I,
)
"""The same where tokens have several axes: of one alone, each token is a step."""
_OWN_PART = re.compile(
    rf"\b(?:own|same|current)\s+{_PART}\b|\b(?:within|inside)\s+(?:a|an|the|each|every|one)\s+{_PART}\b", re.I
)
_SEES = re.compile(r"\b(?:attends?|attending|attention|sees?|visible|bi-?directional(?:ly)?|full)\b", re.I)
_OWN_FRAME = re.compile(
    r"\b(?:attends?|sees?)\s+(?:to\s+)?(?:every|all|each|the\s+whole)\b[^.;]*?\b(?:of|in|within)\s+"
    r"(?:its\s+own|their\s+own|its|the\s+same|the\s+current)\s+(?:frame|image|picture)\b"
    r"|\bbi-?directional(?:ly)?\s+(?:within|inside|in)\s+(?:a|each|every|the\s+same|its\s+own)\s+(?:frame|image|picture)\b",
    re.I,
)
"""Without a condition, that a token sees all of its own frame."""
_OF_FRAMES = re.compile(r"frame|video|film|\btime\b", re.I)
"""In code whose tokens are of frames, of which none sees a later one."""
_CONDITION = re.compile(r"\b(?:if|when|where|whether|optional(?:ly)?|unless|may|can|cannot|not)\b|[=?]", re.I)
AXES_OF_A_FILM = 3
"""Frames, rows and columns."""


def by_whole_frames(invocation: Invocation, evidence: Evidence, found: list[Finding]) -> Iterator[Finding]:
    """What was found of the code's own mask, where frames of several tokens are what is earlier and later.

    Args:
        invocation: the call.
        evidence: of its attention.
        found: what is said of a mask whose tokens follow one another one by one.
    """
    about = next((each for each in found if each.property in ("mask-pattern", "mask-unknown")), None)
    allowed = allowed_of(evidence, of_own=True) if about is not None and not evidence.is_masked else None
    if about is None or allowed is None or not bool((allowed == allowed[:1, :1]).all()):
        yield from found
        return
    first, sizes = allowed[0, 0], _sizes(invocation, evidence)
    line = evidence.base.instance.scores_location
    of_a_frame = math.prod(sizes[1:]) if first.shape == (math.prod(sizes),) * 2 else 0
    if about.kind == "violation" and (count := _parts(first)) and _is_by_parts(invocation, evidence, first, sizes):
        message = f"its own mask: causal by {count} parts: a token sees all of its own part, and of earlier ones"
        yield from (each for each in found if each is not about)
        yield Finding("design", "mask-pattern", "mask", message, line)
        return
    is_open = about.kind in ("violation", "open")
    if is_open and (tokens := _tokens_of_a_frame(evidence, first, sizes)):
        message = f"its own mask: by frames of {tokens} tokens: a token sees all of its own frame, and of no later one"
        yield from (each for each in found if each is not about)
        yield Finding("design", "mask-pattern", "mask", message, line)
        return
    if is_open and evidence.says_causal and len(sizes) > 1 and _tokens_of_a_frame(evidence, first.t(), sizes):
        message = "a token sees its own frame and later ones, and none before: the causal mask is the wrong way round"
        yield from (each for each in found if each is not about)
        yield Finding("violation", "mask-pattern", "mask", message, line)
        return
    if about.kind == "holds" and of_a_frame > 1 and sizes[0] > 1 and torch.equal(first, torch.ones_like(first).tril()):
        told = sentences_of(documentation_of(invocation.target))
        if any(_OWN_FRAME.search(each) and not _CONDITION.search(each) for each in told):
            message = (
                f"its documentation says that a token sees all of its own frame, {of_a_frame} tokens here: query 0 "
                "does not see key 1"
            )
            yield from (each for each in found if each is not about)
            yield Finding("violation", "own-frame-whole", "mask", message, line)
            return
    yield from found


def _is_by_parts(invocation: Invocation, evidence: Evidence, allowed: Tensor, sizes: list[int]) -> bool:
    """Whether a mask by parts is meant: by the frames of a film, or as something says."""
    is_of_axes = len(sizes) > 1 and torch.equal(allowed, _by_frames(len(allowed), math.prod(sizes[1:])))
    if is_of_axes and (len(sizes) == AXES_OF_A_FILM or _OF_TIME.search(evidence.code)):
        return True
    told = sentences_of(documentation_of(invocation.target))
    is_told = any(_OWN_PART.search(each) and _SEES.search(each) for each in told)
    return is_told or _NAMED.search(evidence.code) is not None


def _sizes(invocation: Invocation, evidence: Evidence) -> list[int]:
    """How many tokens the asking sequence has along each of its axes; one number where that is not known."""
    asking, streams = set(evidence.base.query.stream.tolist()), evidence.base.streams
    name = streams[min(asking)] if len(asking) == 1 and 0 <= min(asking) < len(streams) else ""
    stream = next((each for each in invocation.streams if each.argument == name), None)
    if stream is None:
        return [0]
    return [int(invocation.arguments[name].shape[axis]) for axis in stream.token_axes]


def _tokens_of_a_frame(evidence: Evidence, allowed: Tensor, sizes: list[int]) -> int:
    """How many tokens a frame has, where it sees itself whole, no later one, and each other one as a whole or not.

    As where frames are taken for samples. The frames are those of a film, or else blocks of one length in a sequence
    whose code speaks of frames or of time; 0 where tokens see one another by anything else.
    """
    total = len(allowed)
    if allowed.shape[0] != allowed.shape[1] or (len(sizes) != AXES_OF_A_FILM and not _OF_FRAMES.search(evidence.code)):
        return 0
    tokens = math.prod(sizes[1:]) if len(sizes) > 1 else int(allowed[0].sum())
    if tokens < 2 or tokens == total or total % tokens or (len(sizes) > 1 and math.prod(sizes) != total):
        return 0
    of_frames = allowed.reshape(total // tokens, tokens, total // tokens, tokens).transpose(1, 2).flatten(2)
    is_whole = torch.equal(of_frames.any(-1), of_frames.all(-1))
    seen = of_frames.any(-1)
    return tokens if is_whole and bool(seen.diagonal().all()) and not bool(seen.triu(1).any()) else 0


def _by_frames(tokens: int, of_a_frame: int) -> Tensor:
    frame = torch.arange(tokens) // max(of_a_frame, 1)
    return frame[:, None] >= frame


def _parts(allowed: Tensor) -> int:
    """Of how many parts, one behind the other, a mask is in which each sees itself whole and the earlier ones.

    0 where it is another mask, or where one part at most has several tokens, as a prefix.
    """
    queries, keys = allowed.shape
    if queries != keys:
        return 0
    count = allowed.sum(-1)  # how many keys a query sees: the place where its part ends
    ends = torch.unique(count)
    is_prefix = torch.equal(allowed, torch.arange(keys) < count[:, None])
    own = torch.bucketize(torch.arange(keys), ends, right=True)  # the part that a token stands in
    if not is_prefix or int(ends[-1]) != keys or not torch.equal(count, ends[own]):
        return 0
    return len(ends) if int((own.bincount() > 1).sum()) > 1 else 0
