"""Coordinates of a grid's tokens that code computes and never reads."""

from __future__ import annotations

import ast
import re

from regard.check.target.argument import tree_of

__all__ = ["unread_coordinate"]

_OF_AN_AXIS = re.compile(r"(?:\w+_)?(?:\w?[xyhwij]|rows?|cols?|columns?|height|width|vert\w*|horiz\w*)(?:_\w+)?", re.I)
_OF_TIME = re.compile(r"frames?|tempor|\btime\b|video|clip", re.I)
"""In code where tokens may be rotated by their time alone."""
_UNRAVELS = re.compile(r"//|%|\b(?:divmod|meshgrid|unravel_index|unbind|remainder|floor_divide)\b")
"""In an expression that parts the number of a token into its row and its column."""


def unread_coordinate(code: str) -> str:
    """The name of a row, a column, or what is made of it, that is assigned beside another one and never read.

    Args:
        code: the texts of functions and classes, with an empty line between two.
    """
    if _OF_TIME.search(code) or not _UNRAVELS.search(code):
        return ""
    for text in re.split(r"\n\n(?=(?:@|class |def |async def ))", code):
        for function in (each for each in ast.walk(tree_of(text)) if isinstance(each, ast.FunctionDef)):
            found = _unread(function)
            if found:
                return found
    return ""


def _unread(function: ast.FunctionDef) -> str:
    names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
    read = {each.id for each in names if not isinstance(each.ctx, ast.Store)}
    written = [each.id for each in names if isinstance(each.ctx, ast.Store)]
    unread = [each for each in written if each not in read and not each.startswith("_") and _OF_AN_AXIS.fullmatch(each)]
    if len(unread) != 1:
        return ""
    of_axes = [each for each in written if each in read and _OF_AN_AXIS.fullmatch(each)]
    return unread[0] if of_axes else ""
