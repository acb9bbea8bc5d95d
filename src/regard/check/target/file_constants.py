"""Sizes that a file fixes by constants of its own, which a call reads: how many samples and tokens there are."""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import replace
from typing import Any

from torch import nn

from regard.check.target.sizes import Sizes

__all__ = ["with_constants"]

SAMPLES, TOKENS = 2, 5
"""The most that such constants are left at."""
_BATCH = re.compile(r"(?:n_|num_)?batch(?:_?size)?|bs|bsz", re.I)
_LENGTH = re.compile(r"(?:max_?)?(?:seq|sequence|src|tgt|text)_?(?:max_?)?(?:len|length)|max_?len(?:gth)?", re.I)


def with_constants(sizes: Sizes, call: Any) -> tuple[Sizes, list[str]]:
    """The sizes, with those that the code of a call reads from its file where it has the number of samples there.

    Such constants are made small where nothing else of the file is made of them: each token and each sample is changed
    in a call of its own.

    Args:
        sizes: that are to be tried.
        call: a module or a function.

    Returns:
        The sizes, and what the report says of them.
    """
    code = call.forward if isinstance(call, nn.Module) else call
    code = getattr(code, "__func__", code)
    text, known = getattr(code, "__code__", None), getattr(code, "__globals__", {})
    numbers = [name for name in getattr(text, "co_names", ()) if type(known.get(name)) is int]
    samples = [name for name in numbers if _BATCH.fullmatch(name)]
    tokens = [name for name in numbers if _LENGTH.fullmatch(name)]
    if text is None or len(samples) != 1 or len(tokens) > 1:
        return sizes, []
    for name, wanted in zip((*samples, *tokens), (SAMPLES, TOKENS), strict=False):
        if known[name] > wanted and _is_free(text.co_filename, name):
            known[name] = wanted
    fixed = {each: known[name] for name in tokens for each in ("tokens", "context")}
    said = [f"{name} of its file is {known[name]}" for name in (*samples, *tokens)]
    return replace(sizes, batch=known[samples[0]], **fixed), said


def _is_free(path: str, name: str) -> bool:
    """Whether nothing is made of a constant of a file but in its functions and classes, when they are called."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return False
    inner = {
        id(each) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for each in _within(function)
    }
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == name]
    return bool(names) and not any(isinstance(each.ctx, ast.Load) and id(each) not in inner for each in names)


def _within(function: ast.FunctionDef) -> list[ast.AST]:
    return [each for line in function.body for each in ast.walk(line)]
