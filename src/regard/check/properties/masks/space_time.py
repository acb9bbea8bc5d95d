"""Videos of which one attention runs over time, and maps whose rows and columns attend: groups are no mixtures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.table import AttentionTable
from regard.check.target import Invocation

__all__ = ["column_findings", "frame_findings", "groups_of"]

AXES = 3
"""Of the tokens of a video: frames, rows and columns."""
_BY_COLUMNS = re.compile(r"\baxial|axial\b|\bcolumns?\b|\bvertical", re.I)
"""In code of attention within a row of a map, or a column of it."""


def frame_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Groups of as many tokens as there are frames that are neither of one frame nor one token of each frame.

    As where tokens are laid out frame by frame, and are taken apart as if those of one place stood side by side. Groups
    of any other length, as windows of several frames, are not judged.

    Args:
        invocation: the call.
        several: of each attention in it.
    """
    if len(invocation.streams) != 1 or len(invocation.streams[0].token_axes) != AXES:
        return
    for evidence in several:
        table = evidence.base
        frames = _frames(invocation, table)
        if frames is None:
            continue
        count = int(frames.max()) + 1
        places = groups_of(table)
        if places is None or places.shape[1] != count:
            continue
        of_groups = [frames[group].tolist() for group in places]
        if all(len({*each}) in (1, count) for each in of_groups):
            continue
        mixed = next(each for each in of_groups if len({*each}) not in (1, count))
        message = (
            f"attention runs over groups of {count} tokens, as many as there are frames, of which one holds tokens of "
            f"the frames {', '.join(map(str, sorted(mixed)))}: neither one place in each frame nor one frame"
        )
        instance = table.instance
        yield Finding("violation", "frames-whole", "mask", message, instance.scores_location, instance.module)
        return


def column_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Groups of a map's places, as many as a row or a column has, that are neither of one row nor of one column.

    As where (rows, columns) is viewed as (columns, rows). Windows are as many rows of as many columns. Judged where the
    code speaks of columns, and a map has another number of these than of rows.

    Args:
        invocation: the call.
        several: of each attention in it.
    """
    if len(invocation.streams) != 1 or len(invocation.streams[0].token_axes) != 2:
        return
    (stream,) = invocation.streams
    sides = [invocation.arguments[stream.argument].shape[axis] for axis in stream.token_axes]
    for evidence in several:
        table = evidence.base
        if sides[0] == sides[1] or table.streams != tuple(evidence.roles) or not _BY_COLUMNS.search(evidence.code):
            continue
        groups = groups_of(table)
        if groups is None or groups.shape[1] not in sides or groups.numel() != sides[0] * sides[1]:
            continue
        for group in groups.tolist():
            rows, columns = ({*map(part, group)} for part in (lambda at: at // sides[1], lambda at: at % sides[1]))
            if len(rows) * len(columns) != len(group):
                message = (
                    f"attention runs over groups of {len(group)} places of a map of {sides[0]} rows and {sides[1]} "
                    f"columns, of which one lies in rows {', '.join(map(str, sorted(rows)))} and columns "
                    f"{', '.join(map(str, sorted(columns)))}: neither a row nor a column"
                )
                instance = table.instance
                yield Finding("violation", "columns-whole", "mask", message, instance.scores_location, instance.module)
                return


def _frames(invocation: Invocation, table: AttentionTable) -> Tensor | None:
    """(rows): the frame that each row of the queries is made of; None where one is made of several, or of none."""
    stream, asking = invocation.streams[0], table.query
    given = invocation.arguments[stream.argument]
    axis = stream.token_axes[0]
    found = torch.full((int(asking.token.max()) + 1,), -1)
    for frame in range(given.shape[axis]):
        changed = given.clone()
        changed.select(axis, frame).mul_(-0.5)
        run = record_invocation(invocation, {**invocation.arguments, stream.argument: changed})
        if run.error or not run.same_operations(table.instance.run.trace):
            return None
        rows = torch.unique(asking.token[(table.of_run(run).q != table.q).any(-1)])
        if bool((found[rows] >= 0).any()):
            return None
        found[rows] = frame
    sizes = {int((found == each).sum()) for each in range(given.shape[axis])}
    return found if bool((found >= 0).all()) and len(sizes) == 1 else None


def groups_of(table: AttentionTable) -> Tensor | None:
    """(groups, rows): the rows that see each other and no others, where all groups are as large; else None."""
    count = int(table.query.token.max()) + 1
    if int(table.key.token.max()) + 1 != count:
        return None
    seen = torch.zeros(count, count, dtype=torch.bool)
    live = table.weight > ZERO_WEIGHT
    seen[table.query.token[live], table.key.token[live]] = True
    blocks = torch.unique(seen, dim=0)
    is_cut = len({*blocks.sum(1).tolist()}) == 1 and torch.equal(blocks.sum(0), torch.ones(count, dtype=torch.long))
    return torch.stack([each.nonzero().flatten() for each in blocks]) if is_cut else None
