"""Rotary positions of a grid, as of patches: a score depends on the distance in rows, and on that in columns."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.properties.positions.unread_coordinates import unread_coordinate
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in

__all__ = ["grid_of", "has_two_axes", "is_by_rows_and_columns", "kept_grid", "rotary_axes"]

SAME = 1e-7
"""Beside the largest score."""
CHANNELS_OF_TWO_PAIRS = 4
"""Each pair of channels is turned together; fewer than two pairs are turned by one axis of a grid alone."""
MIN_DISTANCES = 3
"""Of a grid, that several pairs of tokens have: fewer show nothing."""
TWO_AXES = re.compile(
    r"\b(?:2-?d|two-dimensional|axial)(?:[\s-]+\w+)?[\s-]+(?:rope|rotary|rotations?)\b"
    r"|\b(?:rope|rotary)(?:[\s-]+\w+){0,3}[\s-]*(?:2-?d\b|two[- ]dimension|\baxial)"
    r"|\b(?:turn|rotat)\w*[^.]*\bthe rows?\b[^.]*\bthe columns?\b"
    r"|\b(?:turn|rotat|rope|rotary)\w*[^.;]*"
    r"\b(?:x and y|rows? and (?:the |of )?col(?:umn)?s?|height and (?:the )?width|both (?:\w+ )?(?:axes|coordinates))\b"
    r"|\(x, ?y\)[^.;]*\b(?:rope|rotary|rotat\w+)\b",
    re.I,
)
"""In a documentation: positions tell rows apart, and columns as well."""

KEPT = re.compile(r"(?:^|_)(?:grid|resolution|hw|spatial_(?:shape|size))(?:_|$)", re.I)
"""In the names of attributes: how many rows and columns a module was made for."""


def grid_of(invocation: Invocation) -> tuple[int, int] | None:
    """How many rows and columns the tokens of a call are of, by the axes of its sequence or what it is told beside it.

    None where it has several sequences, or tokens in a row alone.
    """
    if len(invocation.streams) != 1:
        return None
    (stream,) = invocation.streams
    sizes = [int(invocation.arguments[stream.argument].shape[axis]) for axis in stream.token_axes]
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    told: dict[str | None, Any] = {}
    for name, value in invocation.arguments.items():
        told[{"h": "height", "w": "width"}.get(name.lower()) or call_meaning(name)] = value
    grid = told.get("grid", (told.get("height"), told.get("width")))
    is_grid = isinstance(grid, tuple | list) and len(grid) == 2 and all(type(each) is int for each in grid)
    return (grid[0], grid[1]) if is_grid and [grid[0] * grid[1]] == sizes else None


def kept_grid(invocation: Invocation) -> tuple[int, int] | None:
    """The two numbers of a grid that a module was made for, where the tokens of its call are as many; else None.

    Which of the two counts rows is not said.
    """
    if len(invocation.streams) != 1 or len(invocation.streams[0].token_axes) != 1:
        return None
    (stream,) = invocation.streams
    tokens = invocation.arguments[stream.argument].shape[stream.token_axes[0]]
    for module in modules_in(invocation.target):
        for part in module.modules():
            for name, value in vars(part).items():
                is_grid = isinstance(value, tuple | list) and len(value) == 2 and KEPT.search(name) is not None
                if is_grid and all(type(each) is int for each in value) and value[0] * value[1] == tokens:
                    return value[0], value[1]
    return None


def has_two_axes(invocation: Invocation) -> bool:
    """Whether its tokens are of a grid, or have more axes than that."""
    return any(len(each.token_axes) > 1 for each in invocation.streams) or grid_of(invocation) is not None


def is_by_rows_and_columns(scores: Tensor) -> bool:
    """Whether scores depend on the distances of two tokens in a grid of some width, which is filled row by row."""
    return any(_fits(scores, columns) for columns in range(2, min(scores.shape[-2:])))


def rotary_axes(
    scores: Tensor,
    width: int,
    grid: tuple[int, int] | None,
    kept: tuple[int, int] | None,
    text: str,
    line: CodeLocation | None,
    code: str = "",
) -> Finding | None:
    """Scores of tokens that are alike, in a grid: one of its two distances has no effect, or it is another grid's.

    Some positions are meant for one axis alone, as the frames of a film: so only where the documentation has both.

    Args:
        scores: (samples, heads, queries, keys), which depend on the distances in a grid of some width.
        width: channels of a head.
        grid: how many rows and columns the tokens are of; None where it is not known.
        kept: the same of the grid that the module was made for, in either order.
        text: the documentation.
        line: of the scores.
        code: what is judged.
    """
    if width < CHANNELS_OF_TWO_PAIRS:
        return None
    if grid is None and kept is None:
        return _by_one_of_two(scores, text, line, code)
    if grid is None and kept is not None:
        grid = next((each for each in (kept, kept[::-1]) if _fits(scores, each[1])), None)
    if grid is None or min(grid) < 2 or scores.shape[-2:] != (grid[0] * grid[1],) * 2:
        return None
    rows, columns = grid
    of_grid = f"a grid of {rows} rows and {columns} columns"
    if not _fits(scores, columns):
        other = next(each for each in range(2, min(scores.shape[-2:])) if _fits(scores, each))
        message = (
            f"tokens of {of_grid} are rotated as those of a grid of {other} columns: a score depends on where in the "
            "picture its two tokens stand"
        )
        return Finding("violation", "rotary-axes", "positions", message, line)
    of_rows, of_columns = (_fits(scores, columns, axes) for axes in ((0,), (1,)))
    if of_rows != of_columns and (TWO_AXES.search(" ".join(text.split())) or unread_coordinate(code)):
        one, lost = ("row", "column") if of_rows else ("column", "row")
        message = (
            f"tokens of {of_grid} are rotated by their {one} alone: the {lost} of a token has no effect on any score"
        )
        return Finding("violation", "rotary-axes", "positions", message, line)
    return None


def _by_one_of_two(scores: Tensor, text: str, line: CodeLocation | None, code: str) -> Finding | None:
    """The same where the code makes a grid of its own of the number of tokens, whose width the scores show."""
    columns = [
        (each, axes) for each in range(2, min(scores.shape[-2:])) for axes in ((0,), (1,)) if _fits(scores, each, axes)
    ]
    unread = unread_coordinate(code)
    if len(columns) != 1 or not (unread or TWO_AXES.search(" ".join(text.split()))):
        return None
    one, lost = ("row", "column") if columns[0][1] == (0,) else ("column", "row")
    why = f"; {unread} is computed, and nothing reads it" if unread else ""
    message = (
        f"tokens of a grid of {columns[0][0]} columns are rotated by their {one} alone: the {lost} of a token has no "
        f"effect on any score{why}"
    )
    return Finding("violation", "rotary-axes", "positions", message, line)


def _fits(scores: Tensor, columns: int, axes: tuple[int, ...] = (0, 1)) -> bool:
    """Whether scores depend on the distances along some axes of a grid alone, its rows and its columns."""
    queries, keys = scores.shape[-2:]
    tokens = torch.arange(max(queries, keys))
    places = torch.stack([tokens // columns, tokens % columns], -1)[:, list(axes)]
    apart = places[:queries, None] - places[None, :keys]
    group = torch.unique(apart.flatten(0, 1), dim=0, return_inverse=True)[1]
    flat = scores.flatten(-2).flatten(0, -2)
    if bool(flat.isnan().any()):
        return False
    total = torch.zeros(len(flat), int(group.max()) + 1, dtype=flat.dtype).index_add_(1, group, flat)
    count = group.bincount()
    error = float((flat - (total / count)[:, group]).abs().max())
    return int((count > 1).sum()) >= MIN_DISTANCES and error < SAME * float(flat.abs().max())
