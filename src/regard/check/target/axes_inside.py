"""What the code tells of the axes of an argument, also that of a part which it is handed on to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.target.argument import text_of
from regard.check.target.conditions import is_applied
from regard.check.target.documented_shapes import documented_shape, letters_of
from regard.check.target.looked_up import base_of, part_of, readers
from regard.check.target.preparation import modules_in

__all__ = ["are_counted", "axes_inside", "is_of_channels_first", "is_repeated", "is_sequence_inside", "is_taken_by_a_norm", "map_inside"]

_TAKES_A_PATTERN = re.compile(r"(?:\w+\.)*(?:rearrange|repeat|reduce|asnumpy)\w*")
"""Functions of einops, and those that do the same for several tensors, as rearrange_many."""


def axes_inside(target: Any, name: str) -> tuple[str, ...]:
    """The names of the axes of an argument: as einops takes them, as a line unpacks them, or as they are documented.

    Args:
        target: what is called.
        name: of the argument, as media in rearrange(media, "b t n d -> b (t n) d").
    """
    for module, tree, names in readers(target, name):
        kind: Any = type(module)
        written = [documented_shape(text_of(kind), each) for each in names]
        for found in (*_taken(tree, names), *_unpacked(tree, names), *written):
            if found:
                return found
    return ()


def is_sequence_inside(target: Any, source: str, name: str) -> bool:
    """Whether the code calls a module with an argument alone, or says that it has samples, tokens and channels."""
    return is_applied(source, name) or len(axes_inside(target, name)) > len("bt")


def map_inside(target: Any, name: str) -> bool:
    """Whether the code says that an argument has two axes of tokens: samples, those of several things, and channels."""
    axes = axes_inside(target, name)
    return len(axes) == len("byxd") and letters_of(axes[:1]) == "b"


def _taken(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, ...]]:
    """The axes on the left of a pattern, where each is one name."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or len(each.args) < 2 or not isinstance(each.args[0], ast.Name):
            continue
        pattern = each.args[1].value if isinstance(each.args[1], ast.Constant) else None
        is_pattern = isinstance(pattern, str) and "->" in pattern
        if is_pattern and each.args[0].id in names and _TAKES_A_PATTERN.fullmatch(ast.unparse(each.func)):
            axes = pattern.partition("->")[0].split()
            if all(axis.isidentifier() for axis in axes):
                yield tuple(axes)


def _unpacked(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, ...]]:
    """The names that a line gives to the sizes of all axes."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.Assign) or len(each.targets) != 1 or not isinstance(each.targets[0], ast.Tuple):
            continue
        sizes = re.fullmatch(r"(\w+)\.(?:shape|size\(\))", ast.unparse(each.value))
        axes = [one.id if isinstance(one, ast.Name) else "" for one in each.targets[0].elts]
        if sizes is not None and sizes[1] in names and all(axes):
            yield tuple(axes)


def are_counted(target: Any, name: str) -> bool:
    """Whether the code counts how many of the tokens so far are marked by an argument, as by places.cumsum(-1)."""
    for _, tree, names in readers(target, name):
        for each in ast.walk(tree):
            if not isinstance(each, ast.Call):
                continue
            function = ast.unparse(each.func).rpartition(".")[2]
            of_it = base_of(each.func.value) if isinstance(each.func, ast.Attribute) else ""
            first = base_of(each.args[0]) if each.args else ""
            if function in ("cumsum", "count_nonzero") and {of_it, first} & names:
                return True
    return False


def is_repeated(target: Any, name: str) -> int | None:
    """The axis of samples that an argument without one is given by the code, as 1 in vectors.unsqueeze(1).repeat(...).

    None where it is given none.
    """
    for _, tree, names in readers(target, name):
        for each in ast.walk(tree):
            if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
                continue
            inner = each.func.value
            if each.func.attr not in ("repeat", "expand") or not isinstance(inner, ast.Call | ast.Subscript):
                continue
            found = re.fullmatch(r"(\w+)(?:\.unsqueeze\((?:dim=)?([01])\)|\[(None|:, None)\])", ast.unparse(inner))
            if found is not None and found[1] in names:
                return int(found[2]) if found[2] else int(found[3] != "None")
    return None


def is_of_channels_first(target: Any, name: str) -> bool:
    """Whether the code begins with a convolution over the tokens of an argument: its channels stand before these."""
    return isinstance(_first_taking(target, name), nn.Conv1d)


def is_taken_by_a_norm(target: Any, name: str) -> bool:
    """Whether the code begins with a layer that takes its last axis, and nothing reads pictures: it is a sequence."""
    inner = [each for module in modules_in(target) for each in module.modules()]
    is_of_pictures = any(isinstance(each, nn.Conv2d | nn.Conv3d) for each in inner)
    return not is_of_pictures and isinstance(_first_taking(target, name), nn.Linear | nn.LayerNorm | nn.RMSNorm)


def _first_taking(target: Any, name: str) -> nn.Module | None:
    """The layer that an argument is handed to before anything else is done with it; None without one."""
    reader = next(readers(target, name), None)
    if reader is None:
        return None
    module, tree, names = reader
    reads = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in names]
    reads = [each for each in reads if isinstance(each.ctx, ast.Load)]
    first = min(reads, key=lambda each: (each.lineno, each.col_offset), default=None)
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    call = next((each for each in calls if len(each.args) == 1 and each.args[0] is first), None)
    part = None if call is None or first is None else part_of(module, call.func)
    return part if isinstance(part, nn.Module) else None
