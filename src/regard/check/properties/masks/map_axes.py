"""Axial attention of a map: its attentions run along the rows and along the columns, not all along one of these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from regard.check.properties.documentation import comments_of, name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.space_time import groups_of
from regard.check.roles.influence import differs
from regard.check.target import Invocation
from regard.check.target.cache_forms import parameters_of

__all__ = ["map_axis_findings"]

_ROWS = re.compile(r"(?:^|[_\W])(?:rows?|row_?wise|width|horizontal\w*|along w|w)(?=$|[_\W\d])", re.I)
_COLUMNS = re.compile(r"(?:^|[_\W])(?:col|cols|columns?|column_?wise|height|vertical\w*|h)(?=$|[_\W\d])", re.I)
_BOTH = re.compile(
    r"\brows?\b.*\bcolumns?\b|\bcolumns?\b.*\brows?\b|\bheight\b.*\bwidth\b|\bwidth\b.*\bheight\b"
    r"|\bhorizontal\w*\b.*\bvertical|\bvertical\w*\b.*\bhorizontal|\b(?:both|two) (?:spatial )?(?:axes|directions)\b"
    r"|criss-?cross",
    re.I | re.S,
)
"""Said of attention along the rows of a map and along its columns."""
_CHOICE = re.compile(r"axis|axes|directions?|orientation|along|is_?(?:row|col|vertical)\w*|mode", re.I)
"""Arguments that say along which axis it runs."""


def map_axis_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Attentions of a map that all run along one axis, so that no place reads the other, where both are spoken of.

    By the documentation, or by the names of the modules: one of the row, and one of the column. What mixes the other
    axis by other means, as by a convolution, is right.

    Args:
        invocation: the call.
        several: of each attention in it.
    """
    if len(invocation.streams) != 1 or len(invocation.streams[0].token_axes) != 2 or len(several) < 2:
        return
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    rows, columns = (int(given.shape[axis]) for axis in stream.token_axes)
    runs = {_axis(evidence, rows, columns) for evidence in several}
    if len(runs) != 1 or not (along := runs.pop()) or min(rows, columns) < 2 or not given.is_floating_point():
        return
    if not hasattr(invocation.target, "__dict__") or any(
        _CHOICE.fullmatch(each) for each in {*parameters_of(invocation.target), *_settings(invocation.target)}
    ):
        return
    names = [each.base.instance.module.rpartition(".")[2] for each in several]
    is_named = any(map(_ROWS.search, names)) and any(map(_COLUMNS.search, names))
    said = " ".join([name_and_documentation(invocation.target), *comments_of(invocation.target)])
    if not (is_named or _BOTH.search(said)) or _mixes_the_other(invocation, along):
        return
    one, other = ("row", "column") if along == "rows" else ("column", "row")
    message = (
        f"all {len(several)} attentions run over the {along} of a map of {rows} rows and {columns} columns: a place "
        f"reads its own {one} alone, and nothing of its {other}"
    )
    instance = several[-1].base.instance
    yield Finding("violation", "axes-of-a-map", "mask", message, instance.scores_location, instance.module)


def _axis(evidence: Evidence, rows: int, columns: int) -> str:
    """Whether it runs over each of the rows of a map, or its columns; empty of anything else."""
    groups = groups_of(evidence.base)
    if groups is None or groups.numel() != rows * columns:
        return ""
    if groups.shape[1] == columns and all(len({place // columns for place in each}) == 1 for each in groups.tolist()):
        return "rows"
    if groups.shape[1] == rows and all(len({place % columns for place in each}) == 1 for each in groups.tolist()):
        return "columns"
    return ""


def _settings(target: object) -> set[str]:
    return {name for name, value in vars(target).items() if isinstance(value, str | int)}


def _mixes_the_other(invocation: Invocation, along: str) -> bool:
    """Whether a row has an influence on another one, or a column if these attend; or it is not known."""
    (stream,) = invocation.streams
    name, (row, column) = stream.argument, stream.token_axes
    axis = row if along == "rows" else column
    given = invocation.arguments[name]
    changed = given.clone()
    changed.select(axis, 0).mul_(-0.5)
    try:
        one, other = (
            invocation.outputs(invocation.run({**invocation.arguments, name: each}))[0].detach()
            for each in (given, changed)
        )
    except Exception:  # the code's own may raise anything
        return True
    if one.shape != given.shape or other.shape != given.shape:
        return True
    return bool(differs(one, other).movedim(axis, 0)[1:].any())
