"""Masks between a text and media in it, as pictures: all tokens of one that has begun are seen, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.code import code_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import differs
from regard.check.target import Invocation, Stream
from regard.check.target.cache_forms import parameters_of

__all__ = ["media_findings"]

_PLACES = re.compile(
    r"(?:media|medium|images?|img|pictures?|vis(?:ion|ual)|videos?|audio|frames?|clips?)_"
    r"(?:loc(?:ation)?s?|places?|pos(?:itions?)?|starts?|tokens?_mask|begins?|mask|flags?)",
    re.I,
)
"""Arguments that say at which tokens of a text a medium stands."""
_AHEAD = re.compile(
    r"attend_previous|(?:next|following|subsequent|upcoming|later|future|nearest|closest|surrounding)[ _-]+"
    r"(?:media|medium|images?|img|pictures?|videos?|audio|frames?|clips?)|both[ _-](?:sides|directions)",
    re.I,
)
"""In a code: that a text is meant to read what comes after it, as the text in front of a picture."""
MOST_TOKENS = 40
"""Of the media, each of which is changed in a run of its own."""


def media_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A text that reads some of the tokens of a medium alone, or a medium that is still to begin, told where they do.

    As where the number of each medium is repeated for its tokens in another order than that in which these are laid.

    Args:
        invocation: the call, of a text and of media (samples, media, tokens of each, channels).
        several: of each attention in it.
    """
    texts = [each for each in invocation.streams if len(each.token_axes) == 1]
    media = [each for each in invocation.streams if len(each.token_axes) == 2]
    names = [each for each in parameters_of(invocation.target) if _PLACES.fullmatch(each)]
    if len(invocation.streams) != 2 or not (len(texts) == len(media) == len(names) == 1) or invocation.arrays:
        return
    text, medium = texts[0], media[0]
    tokens, latents = invocation.arguments[text.argument], invocation.arguments[medium.argument]
    if text.batch_axis is None or not isinstance(latents, Tensor) or not latents.is_floating_point():
        return
    count, parts = (int(latents.shape[axis]) for axis in medium.token_axes)
    length = int(tokens.shape[text.token_axes[0]])
    if min(count, parts) < 2 or count * parts > MOST_TOKENS or length < 3:
        return
    places = torch.zeros(tokens.shape[text.batch_axis], length, dtype=torch.bool)
    places[:, :: max(2, -(-length // count))] = True
    read = _read(invocation, {**invocation.arguments, names[0]: places}, text, medium)
    if read is None:
        return
    message = _parted(read) and f"told {names[0]}, {_parted(read)}"
    if message and (names[0] not in invocation.arguments or invocation.arguments[names[0]] is None):
        untold = _read(invocation, invocation.arguments, text, medium)
        message = "" if untold is None or _parted(untold) else message  # it chooses some of them without a mask
    if message:
        message = message.format(text=text.argument, media=medium.argument)
        instance = several[0].base.instance
        yield Finding("violation", "media-whole", "mask", message, instance.scores_location, instance.module)
        return
    message = "" if _AHEAD.search(code_of(invocation.target)) else _ahead(read.any(-1), places[0])
    if message:
        message = f"told {names[0]}, {message.format(text=text.argument, media=medium.argument)}"
        instance = several[0].base.instance
        yield Finding("violation", "media-begun", "mask", message, instance.scores_location, instance.module)


def _parted(read: Tensor) -> str:
    """Which token reads a part of a medium alone."""
    parted = read.any(-1) & ~read.all(-1)
    if not bool(parted.any()):
        return ""
    token, at = map(int, parted.nonzero()[0])
    return (
        f"token {token} of {{text}} reads {int(read[token, at].sum())} of the {read.shape[-1]} tokens of medium {at} "
        "in {media}, and not the others: the mask is laid out in another order"
    )


def _ahead(read: Tensor, places: Tensor) -> str:
    """Which token reads a medium that begins after it, in place of its own, or beside all before it.

    As where media are counted from 0, and the places of a text from 1. What reads so many on both sides is left alone.

    Args:
        read: (text, media) which are read.
        places: (text,) where a medium begins; the first token is such a place.
    """
    begun = places.cumsum(0)
    count = read.shape[1]
    known = [token for token in range(len(begun)) if int(begun[token]) < count and not bool(read[token].all())]
    ahead = [token for token in known if bool(read[token, int(begun[token]) :].any())]
    own = [bool(read[token, int(begun[token]) - 1]) for token in ahead]
    earlier = all(bool(row[: int(number)].all()) for row, number in zip(read, begun, strict=True))
    if not ahead or (any(own) and not (earlier and int(begun.max()) > 2)):
        return ""
    token = ahead[0]
    at = int(begun[token]) + int(read[token, int(begun[token]) :].nonzero()[0])
    return f"token {token} of {{text}}, before which {int(begun[token])} of {{media}} began, reads medium {at} (from 0)"


def _read(invocation: Invocation, told: dict[str, Any], text: Stream, medium: Stream) -> Tensor | None:
    """(text, media, tokens of each): which have an influence on a token of the text; None where it does not run."""
    latents, axis = told[medium.argument], text.token_axes[0]
    length, (count, parts) = told[text.argument].shape[axis], (latents.shape[each] for each in medium.token_axes)
    read = torch.zeros(length, count, parts, dtype=torch.bool)
    try:
        base = invocation.outputs(invocation.run(told))[0].detach()
        if base.ndim <= axis or base.shape[axis] != length or not bool(base.isfinite().all()):
            return None
        for at in range(count):
            for part in range(parts):
                changed = latents.clone()
                changed.movedim(medium.token_axes, (0, 1))[at, part] *= -0.5
                other = invocation.outputs(invocation.run({**told, medium.argument: changed}))[0].detach()
                read[:, at, part] = differs(base, other).movedim(axis, 0).flatten(1).any(1)
    except Exception:  # the code's own may raise anything
        return None
    return read
