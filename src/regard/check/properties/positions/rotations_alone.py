"""Rotary positions without an attention: a function of queries and keys, and of cosines and sines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor, nn

from regard.check.properties.evidence import with_equal_tokens
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream
from regard.check.target.cache_runs import optional_positions
from regard.check.target.errors import Failed
from regard.check.target.names import call_meaning
from regard.check.target.preparation import copied

__all__ = ["rotation_alone_findings"]

_TABLES = re.compile(r"cos|sin|freq|rope|rotary|angle", re.I)
"""In the names of arguments that say by how much is rotated."""
SAME = 1e-6
START = 3
"""Where the tokens of a second call begin."""


def rotation_alone_findings(invocation: Invocation) -> Iterator[Finding]:
    """Queries or keys alone that keep their lengths, or both, whose products hang on more than their distance.

    Asked with equal tokens, so that only their places tell them apart.

    Args:
        invocation: a call in which no attention was found.
    """
    streams = {each.role: each for each in invocation.streams}
    others = invocation.arguments.keys() - {each.argument for each in invocation.streams}
    if streams.keys() != {"q", "k"} or len(invocation.streams) != 2 or not all(map(_is_of_positions, others)):
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
    tokens = min(each.shape[-2] for each in rotated)
    queries, keys = (each[..., :tokens, :] for each in rotated)
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
        return
    if not queries.ndim > 2 or float((queries[..., 1:, :] - queries[..., :-1, :]).abs().max()) <= SAME:
        return
    kept = list(_kept_of_other_calls(invocation))
    message = "rotary positions alone: equal queries and keys have products by their distance, at each place"
    yield from kept or [Finding("design", "positions-relative", "positions", message)]


def _is_of_positions(name: str) -> bool:
    """Whether an argument says where tokens stand, or by how much they are rotated."""
    return _TABLES.search(name) is not None or call_meaning(name) in ("start", "positions")


def _kept_of_other_calls(invocation: Invocation) -> Iterator[Finding]:
    """A call that is told where its tokens begin, and rotates them as one before it that was not told so."""
    names = [name for name, kind in optional_positions(invocation) if kind == "start"]
    for name in names if isinstance(invocation.target, nn.Module) else ():
        told = {**invocation.arguments, name: START}
        live = copied(invocation.target)
        try:
            alone = invocation.outputs(invocation.run(told, target=copied(invocation.target)))
            invocation.run(target=live)
            after = invocation.outputs(invocation.run(told, target=live))
        except Failed:
            continue
        gap = max((float((one - two).abs().max()) for one, two in zip(alone, after, strict=True)), default=0.0)
        if gap > SAME:
            message = (
                f"a call with {name}={START} after one without it returns numbers that differ by up to {gap:.3g} from "
                "those of the same call alone: what is kept is that one's"
            )
            yield Finding("violation", "calls-apart", "positions", message)
            return


def _as_given(made: Tensor, given: Tensor) -> Tensor | None:
    """What was made of a tensor in its axes; None of what has others, but for axes of one."""
    is_same = [each for each in made.shape if each > 1] == [each for each in given.shape if each > 1]
    return made.detach().double().reshape(given.shape) if is_same and made.is_floating_point() else None


def _rows(tensor: Tensor | None, stream: Stream) -> Tensor | None:
    """(..., tokens, channels) of one sequence; None where its channels are not the last axis."""
    if tensor is None or len(stream.token_axes) != 1 or stream.token_axes[0] == tensor.ndim - 1:
        return None
    return tensor.double().movedim(stream.token_axes[0], -2)
