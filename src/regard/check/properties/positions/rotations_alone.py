"""Rotary positions without an attention: a function of queries and keys, and of cosines and sines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from regard.check.properties.evidence import with_equal_tokens
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream
from regard.check.target.errors import Failed

__all__ = ["rotation_alone_findings"]

_TABLES = re.compile(r"cos|sin|freq|rope|rotary|angle", re.I)
"""In the names of arguments that say by how much is rotated."""
SAME = 1e-6


def rotation_alone_findings(invocation: Invocation) -> Iterator[Finding]:
    """Queries or keys alone that keep their lengths, or both, whose products hang on more than their distance.

    Asked with equal tokens, so that only their places tell them apart.

    Args:
        invocation: a call in which no attention was found.
    """
    streams = {each.role: each for each in invocation.streams}
    others = invocation.arguments.keys() - {each.argument for each in invocation.streams}
    if streams.keys() != {"q", "k"} or len(invocation.streams) != 2 or not all(map(_TABLES.search, others)):
        return
    given = with_equal_tokens(invocation)
    try:
        outputs = invocation.outputs(invocation.run(given))
    except Failed:
        return
    if len(outputs) != 2:
        return
    rotated, unlike = [], []
    for stream, made in zip((streams["q"], streams["k"]), outputs, strict=True):
        before, after = _rows(given[stream.argument], stream), _rows(_as_given(made, given[stream.argument]), stream)
        if before is None or after is None:
            return
        lengths = after.norm(dim=-1) / before.norm(dim=-1)
        if float((lengths - lengths[..., :1]).abs().max()) > SAME:
            unlike.append("queries" if stream.role == "q" else "keys")
        rotated.append(after)
    if len(unlike) == 1:
        message = f"{unlike[0]} are longer or shorter from place to place, and the others keep their lengths"
        yield Finding("violation", "rotation-keeps-lengths", "positions", message)
    if unlike:
        return  # what is not rotated may be anything
    queries, keys = rotated
    if queries.shape != keys.shape:
        return
    scores = queries @ keys.mT
    gap = float((scores[..., 1:, 1:] - scores[..., :-1, :-1]).abs().max())
    if gap > SAME * float(scores.abs().max()):
        message = (
            f"equal queries and keys, as far apart, have products that differ by up to {gap:.3g} from place to place: "
            "queries and keys are not rotated by the same angles, the same way around"
        )
        yield Finding("violation", "positions-relative", "positions", message)


def _as_given(made: Tensor, given: Tensor) -> Tensor | None:
    """What was made of a tensor in its axes; None of what has others, but for axes of one."""
    is_same = [each for each in made.shape if each > 1] == [each for each in given.shape if each > 1]
    return made.detach().double().reshape(given.shape) if is_same and made.is_floating_point() else None


def _rows(tensor: Tensor | None, stream: Stream) -> Tensor | None:
    """(..., tokens, channels) of one sequence; None where its channels are not the last axis."""
    if tensor is None or len(stream.token_axes) != 1 or stream.token_axes[0] == tensor.ndim - 1:
        return None
    return tensor.double().movedim(stream.token_axes[0], -2)
