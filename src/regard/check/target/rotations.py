"""What the code of rotary positions tells: which argument holds their table, and which channels are turned together."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from torch import nn

from regard.check.target.argument import source_of, text_of, tree_of
from regard.check.target.preparation import modules_in

__all__ = ["are_neighbours_turned", "are_parts_read", "is_rotated_by"]

_ROTATES = re.compile(r"rotary|rotat|(?<![a-z])rope(?![a-z])|rot_|_rot\b|pos_emb", re.I)
"""In the name of a function."""
_OF_A_TABLE = re.compile(r"rotary|rotat|(?<![a-z])rope(?![a-z])", re.I)
"""In the name of one that takes a table beside the vectors; a module makes its table itself."""
_NEIGHBOURS = re.compile(
    r"::\s*2|view_as_complex|reshape\([^)]*,\s*-1,\s*2\)|repeat_interleave|unflatten\([^)]*2\)"
    r"|\(\s*\w+\s+(?P<pair>\w+)\s*\)\s*->[^'\"\n]*['\"]\s*,\s*(?P=pair)\s*=\s*2\b"  # einops: the pair is the inner axis
)
_PARTS = re.compile(
    r"\b(?P<first>\w*(?:cis|freq|rope|rot|pos|table|cache|cos_?sin)\w*)\s*\[\s*\.\.\.\s*,\s*0\s*\]"
    r"(?=.*\b(?P=first)\s*\[\s*\.\.\.\s*,\s*1\s*\])"
    r"|\w*cos\w*\s*,\s*\w*sin\w*\s*=\s*\w*(?:cis|freq|rope|rot|pos|table|cache)\w*\s*\.unbind\(\s*(?:dim\s*=\s*)?-1\s*\)",
    re.S | re.I,
)
"""A cosine and a sine that stand beside each other along the last axis of a table, as view_as_real puts them."""
_AS_COMPLEX = re.compile(r"view_as_complex|torch\.complex\(|\.(?:real|imag)\b")
"""In the text of a function that turns vectors: its table is of complex numbers, or is made one."""
MOST = 10
"""Functions whose texts are read."""


def are_neighbours_turned(target: Any, source: str) -> bool:
    """Whether two neighbouring channels are turned together, by the text, or that of the functions that turn them.

    Args:
        target: a module or a function.
        source: its text.
    """
    return any(_NEIGHBOURS.search(each) for each in (source, *_rotating(target, source)))


def are_parts_read(target: Any, source: str) -> bool:
    """Whether a table is read as numbers whose last axis holds a cosine and a sine, by the functions that rotate.

    Args:
        target: a module or a function.
        source: its text.
    """
    kinds = (type(each) for module in modules_in(target) for each in module.modules())
    own = [source, *(source_of(each) for each in dict.fromkeys(kinds) if not each.__module__.startswith("torch."))]
    texts = dict.fromkeys([*own, *(text for each in own for text in _rotating(target, each))])
    return any(_PARTS.search(each) and not _AS_COMPLEX.search(each) for each in texts)


def is_rotated_by(source: str, name: str) -> bool:
    """Whether an argument is nothing but handed to functions that rotate other vectors, as in rotate(name, q).

    Args:
        source: the text of the code.
        name: of the argument.
    """
    tree = tree_of(source)
    told = {
        id(one)
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and _OF_A_TABLE.search(each.func.id)
        if len(each.args) + len(each.keywords) > 1
        for one in (*each.args, *(keyword.value for keyword in each.keywords))
    }
    read = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == name]
    return bool(read) and all(id(each) in told for each in read)


def _rotating(target: Any, source: str) -> list[str]:
    """The texts of the functions of its file that rotate, by their names, and of those that these use."""
    code = type(target).forward if isinstance(target, nn.Module) else target
    known = getattr(getattr(code, "__func__", code), "__globals__", {})
    texts, waiting = list[str](), [source or source_of(target)]
    while waiting and len(texts) < MOST:
        for name in dict.fromkeys(re.findall(r"\b[A-Za-z_]\w*", waiting.pop())):
            used = known.get(name)
            if _ROTATES.search(name) and inspect.isfunction(used) and (text := text_of(used)) not in texts:
                texts.append(text)
                waiting.append(text)
    return texts
