"""Keys that are read a chunk at a time: those behind the last whole chunk are read as well."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import allowed_of
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import drawn_like

__all__ = ["unread_key_findings"]

UNMOVED = 1e-12
"""What an output may differ by that reads nothing of what was changed."""


def unread_key_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """The last tokens, which no query sees, where all queries see all others, in several chunks.

    A loop over n // size chunks ends with the last whole one. Of one chunk the keys that are read may be those that are
    meant, as the rows of a table whose answers are known.

    Args:
        invocation: the call.
        evidence: of its only attention.
    """
    table, count = evidence.base, evidence.num_tokens
    keys = int(table.key.token.max()) + 1
    if len(table.instance.sums) < 2 or len(invocation.streams) != 1 or not 1 < keys < count or evidence.is_masked:
        return
    allowed, stream = allowed_of(evidence, of_own=True), invocation.streams[0]
    if allowed.shape[-2] != count or not bool(allowed.all()) or len(stream.token_axes) != 1:
        return
    (axis,) = stream.token_axes
    x = invocation.arguments[stream.argument]
    if x.shape[axis] != count or not x.is_floating_point():
        return
    other = torch.cat([x.narrow(axis, 0, keys), drawn_like(x, seed=9).narrow(axis, keys, count - keys)], axis)
    try:
        before, after = (
            invocation.outputs(invocation.run({**invocation.arguments, stream.argument: each}))[0]
            for each in (x, other)
        )
    except (Failed, IndexError):
        return
    if before.shape != after.shape or before.ndim <= axis or before.shape[axis] != count:
        return
    moved = (before - after).narrow(axis, 0, keys).abs().max()
    if float(moved) <= UNMOVED * max(1.0, float(before.abs().max())):
        listed = ", ".join(map(str, range(keys, count)))
        message = (
            f"keys are read in chunks, and no query sees the last ones, {listed} of {count}: they make no whole chunk"
        )
        yield Finding("violation", "keys-seen", "scores", message, table.instance.scores_location)
