"""A cache that is given its newest token alone, after the tokens before were put in front of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of

__all__ = ["newest_alone_findings"]

_KEYS = re.compile(r"(?:^|_)(?:k|keys?|ks)(?:_|$)", re.I)
_VALUES = re.compile(r"(?:^|_)(?:v|values?|vs|vals?)(?:_|$)", re.I)
_JOINS = re.compile(r"(?:torch\.)?(?:cat|concat|concatenate|hstack)")


def newest_alone_findings(target: Any) -> Iterator[Finding]:
    """Keys and values that are joined to those kept, of which the last one alone is kept again: k = cat([self.k, k]).

    From the third token on, a query meets the token before it and itself. What a convolution keeps of a sequence is one
    tensor and not two; a window is as long as a number says.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        for function in nodes_of(text, ast.FunctionDef):
            assigned = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
            pairs = [pair for each in assigned for pair in _pairs(each)]
            joined = {
                (ast.unparse(to), ast.unparse(one))
                for to, value in pairs
                if isinstance(value, ast.Call) and _JOINS.fullmatch(ast.unparse(value.func)) and value.args
                for one in getattr(value.args[0], "elts", ())
            }
            kept = {
                ast.unparse(to): value.lineno
                for to, value in pairs
                if isinstance(value, ast.Subscript)
                and _is_newest(value.slice)
                and (ast.unparse(value.value), ast.unparse(to)) in joined
            }
            names = {name: name.rpartition(".")[2] for name in kept if name.startswith("self.")}
            both = [next((each for each in names if kind.search(names[each])), "") for kind in (_KEYS, _VALUES)]
            if all(both):
                message = (
                    f"{both[0]} and {both[1]} are put in front of the new key and value, and of these the last one "
                    "alone is kept: a query meets one token before itself, and none that came earlier"
                )
                yield Finding("violation", "cache-places", "k", message, line_in(part, kept[both[0]]))
                return


def _pairs(assigned: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is given a value, and the value, also where several are given in one line."""
    for to in assigned.targets:
        if isinstance(to, ast.Tuple) and isinstance(assigned.value, ast.Tuple):
            yield from zip(to.elts, assigned.value.elts, strict=False)
        else:
            yield to, assigned.value


def _is_newest(index: ast.expr) -> bool:
    """Whether of some axis the last place alone is taken, as in [:, -1:]."""
    several = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(each, ast.Slice) and ast.unparse(each) == "-1:" for each in several)
