"""The axes of a map of features, or of a video, as the documentation or a pattern of einops writes them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache

from regard.check.target.documented_shapes import documented_shape
from regard.check.target.names import constructor_meaning

__all__ = ["are_sides_last", "is_projected_per_sample", "written_map", "written_sides"]

_LETTERS = {
    "b": re.compile(r"b|n|bs|bsz|batch(?:_?size)?", re.I),
    "z": re.compile(r"f|t|time|(?:n_?|num_?)?frames?", re.I),
    "d": re.compile(r"c|ch|d|chans?|(?:in_?)?channels?|dim", re.I),
    "y": re.compile(r"h|height", re.I),
    "x": re.compile(r"w|width", re.I),
}
"""Names of the axes of pictures and videos, by the letters of layouts."""


def written_map(source: str, name: str) -> str:
    """The letters of the axes of a map or a video, each written once, samples first; empty of anything else.

    Args:
        source: the text of what is called.
        name: of the argument, as x in rearrange(x, "b f c (h p) (w q) -> b (f h w) (p q c)", p=8, q=8).
    """
    for names in (documented_shape(source, name), _taken_by_einops(source, name), _taken_by_a_layer(source, name)):
        letters = "".join(_letter(each) for each in names)
        if len(letters) == len(names) == len({*letters}) and {"b", "d", "y", "x"} <= {*letters} and letters[0] == "b":
            return letters
        if _are_two_of_tokens(names):
            return "byxd"
        if _are_of_other_channels(names):
            return "bdyx"
    return ""


def _are_of_other_channels(names: tuple[str, ...]) -> bool:
    """Whether axes are named as samples, one that nothing is known of, and the sides of a map, as (N, K, H, W)."""
    if [_letter(each) for each in names] != ["b", "", "y", "x"] or names[1].isdigit():
        return False
    return constructor_meaning(names[1]) not in ("heads", "kv_heads")


def _are_two_of_tokens(names: tuple[str, ...]) -> bool:
    """Whether axes are named as samples, two that nothing is known of, and the width, as (b, series, segments, dim)."""
    if len(names) != len("byxd") or _letter(names[0]) != "b" or constructor_meaning(names[-1]) != "d_model":
        return False
    between = names[1:-1]
    known = ("d_model", "heads", "kv_heads", "d_head")
    return not any(each.isdigit() or _letter(each) == "d" or constructor_meaning(each) in known for each in between)


def written_sides(source: str, name: str, letters: str, sizes: Mapping[str, int]) -> tuple[int | None, int | None]:
    """How many rows and columns an argument has, where its axes are written by the names of sizes; None of others.

    Args:
        source: the text of what is called.
        name: of the argument, as x in rearrange(x, "b series segments d -> (b series) segments d").
        letters: of its axes, as of a layout.
        sizes: by the names of the constructor's arguments, as segments=5.
    """
    for names in (documented_shape(source, name), _taken_by_einops(source, name)):
        if len(names) == len(letters) and {"y", "x"} <= {*letters}:
            sides = [names[letters.index(side)] for side in "yx"]
            if any(constructor_meaning(each) == "d_model" for each in sides):
                continue  # a layout of other axes than are written
            rows, columns = map(sizes.get, sides)
            if rows is not None or columns is not None:
                return rows, columns
    return None, None


def are_sides_last(axes: Sequence[str]) -> bool:
    """Whether axes are those of a map whose rows and columns stand behind all else, as (N, K, H, W).

    Args:
        axes: their names.
    """
    return {_letter(each) for each in axes[-2:]} == {"y", "x"}


def is_projected_per_sample(source: str, name: str) -> bool:
    """Whether einops takes what a layer makes of it as one vector of each sample.

    Args:
        source: the text of what is called.
        name: of the argument, as s in q = self.to_q(s); q = rearrange(q, "b (h d) -> b h d", h=8).
    """
    made = re.findall(rf"^\s*(\w+)\s*=\s*self\.\w+\(\s*{re.escape(name)}\s*\)\s*$", source, re.M)
    axes = [found for each in made if (found := _taken_by_einops(source, each))]
    return bool(axes) and all(
        len(each) == len("bd") and _letter(each[0]) == "b" and each[0].lower() != "n"  # which may count tokens
        for each in axes
    )


def _letter(name: str) -> str:
    return next((letter for letter, pattern in _LETTERS.items() if pattern.fullmatch(name)), "")


@cache
def _taken_by_einops(source: str, name: str) -> tuple[str, ...]:
    """The first name of each axis that einops is told of an argument, as h of (h p); none where it takes it nowhere."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return ()
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or len(each.args) < 2 or not isinstance(each.args[0], ast.Name):
            continue
        pattern = each.args[1].value if isinstance(each.args[1], ast.Constant) else None
        if each.args[0].id == name and isinstance(pattern, str) and "->" in pattern:
            return _axes(pattern)
    return ()


def _taken_by_a_layer(source: str, name: str) -> tuple[str, ...]:
    """The same of a layer of einops, the first of a sequence of layers that the argument goes through first."""
    called = re.search(rf"\bself\.(\w+)\(\s*{re.escape(name)}\s*\)", source)
    if called is None:
        return ()
    made = rf"\bself\.{called[1]}\s*=\s*(?:[\w.]*Sequential\(\s*)?Rearrange\(\s*(['\"])(.*?->.*?)\1"
    found = re.search(made, source)
    return () if found is None else _axes(found[2])


def _axes(pattern: str) -> tuple[str, ...]:
    axes = re.findall(r"\(([^()]*)\)|(\S+)", pattern.partition("->")[0])
    return tuple((inner or alone).split()[0] for inner, alone in axes if (inner or alone).strip())
