"""Windows of a picture that was rolled: what the roll brings together from opposite ends is hidden by the mask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.target import Invocation

__all__ = ["shifted_window_findings"]

_ROUND = re.compile(r"longitud|cyclic(?:al)? (?:data|bound|axis|dimension)|periodic|circular|globe|earth|spheric", re.I)
"""In code of pictures that go on at their other end."""


def shifted_window_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether a token sees the other end of the picture, and not what is between, where a mask hides a part of that.

    Liu et al. 2021, "Swin Transformer", section 3.2: windows after a cyclic shift hold parts that are not adjacent in
    the picture, and a mask limits attention to each part. Without any mask the picture is taken to go on there.

    Args:
        invocation: the call.
        evidence: of its attention.
    """
    table, stream = evidence.base, invocation.streams[0]
    is_rolled = any(each.name == "roll" for each in table.instance.run.trace)
    if not is_rolled or len(invocation.streams) > 1 or len(stream.token_axes) != 2 or _ROUND.search(evidence.code):
        return
    sides = [invocation.arguments[stream.argument].shape[axis] for axis in stream.token_axes]
    allowed = allowed_of(evidence)[0, 0]
    if allowed.shape != (sides[0] * sides[1],) * 2 or not bool((table.weight.abs() <= ZERO_WEIGHT).any()):
        return
    seen = allowed.view(-1, *sides)
    ends = [_sees_the_other_end(seen.any(2 - axis)) for axis in range(2)]
    near = ~(ends[0] | ends[1]) & ~(seen.flatten(1).all(-1))
    for several in ends:
        if bool(several.any()) and bool(near.any()):
            query = int(several.nonzero()[0])
            keys = allowed[query].nonzero().flatten()
            farthest = int(keys[(keys - query).abs().argmax()])
            at, other = ("row {}, column {}".format(*divmod(place, sides[1])) for place in (query, farthest))
            message = (
                f"the token at {at} sees the one at {other}, at the other end of the picture: the roll brought both "
                "into one window, and the mask hides other keys of it"
            )
            yield Finding("violation", "shifted-windows", "mask", message, table.instance.scores_location)
            return


def _sees_the_other_end(seen: Tensor) -> Tensor:
    """(tokens): of (tokens, places) along an axis, whether both ends are seen, and some place between them is not."""
    return seen[:, 0] & seen[:, -1] & ~seen.all(-1)
