"""Queries, keys or scores that the code scales, and scales once more, on any way through it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of
from regard.check.target.names import call_meaning

__all__ = ["scaled_twice_findings"]

_SCORES = re.compile(r"(?:attn|attention|att)?_?(?:scores?|logits|dots|energy)|attn|sim|dots", re.I)
_SCALE = re.compile(r"(?:self\.)?_?(?:softmax_|attn_|attention_|qk_)?scal(?:e|ing)(?:_factor)?")
_PART_OF_IT = re.compile(r"0?\.25\b|1\s*/\s*4\b|sqrt\([^()\n]*sqrt\(|\*\*\s*\(?-?\s*1\s*/\s*4")
"""A fourth root: twice it is the scale."""
Store = tuple[int, tuple[int, ...], str]
"""A line that gives a name another value: its number, the blocks that it stands in, and the scale, if it is one."""


def scaled_twice_findings(target: Any) -> Iterator[Finding]:
    """A name that is multiplied by the scale, and again further on, with no other value in between.

    As queries that meet the keys of a second sequence as well, under an option: there their scores are divided by the
    width, and not by its root. Lines that exclude each other, as of an if and its else, are none.

    Args:
        target: what was called.
    """
    for part, text in parts_of(target):
        if _PART_OF_IT.search(text):
            continue
        for function in nodes_of(text, ast.FunctionDef):
            stores: dict[str, list[Store]] = {}
            _collect(function.body, (), stores)
            for name, several in stores.items():
                if call_meaning(name) not in ("q", "k") and _SCORES.fullmatch(name) is None:
                    continue
                for (_, outer, first), (line, inner, second) in itertools.pairwise(several):
                    if first and first == second and inner[: len(outer)] == outer:
                        message = f"{name} is multiplied by {first}, and was so before: there the scale is its square"
                        yield Finding("violation", "scaled-once", "scale", message, line_in(part, line))
                        return


def _collect(block: list[ast.stmt], path: tuple[int, ...], stores: dict[str, list[Store]]) -> None:
    """Every line that gives a name a value, in the order of the code."""
    for statement in block:
        targets: list[ast.expr] = []
        match statement:
            case ast.Assign():
                targets = statement.targets
            case ast.AugAssign() | ast.AnnAssign() | ast.For():
                targets = [statement.target]
            case _:
                pass
        named = [each.id for one in targets for each in ast.walk(one) if isinstance(each, ast.Name)]
        for name in named:
            stores.setdefault(name, []).append((statement.lineno, path, _scale_of(statement, name)))
        for number, field in enumerate(("body", "orelse", "finalbody")):
            inner = getattr(statement, field, [])
            if isinstance(inner, list) and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                _collect(inner, (*path, 10 * statement.lineno + number), stores)


def _scale_of(statement: ast.stmt, name: str) -> str:
    """By which scale a line multiplies a name alone; empty where it does anything else."""
    match statement:
        case ast.AugAssign(target=ast.Name(), op=ast.Mult(), value=factor):
            factors = [factor]
        case ast.Assign(targets=[ast.Name()], value=ast.BinOp(left=left, op=ast.Mult(), right=right)):
            factors = [
                other for one, other in ((left, right), (right, left)) if isinstance(one, ast.Name) and one.id == name
            ]
        case _:
            return ""
    told = [ast.unparse(each) for each in factors]
    return told[0] if len(told) == 1 and _SCALE.fullmatch(told[0]) else ""
