"""Formulas of a documentation that mix two things by a gate, as g * a + (1 - g) * b: the code mixes them so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.documentation import comments_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of

__all__ = ["documented_mix_findings"]

_TIMES = r"\s*[*\u00b7\u2299\u2218]?\s*"
_FACTOR = r"(?:[A-Za-z]\w*)"
_MIX = re.compile(
    rf"(?<![\w.])(?P<gate>[A-Za-z]\w*){_TIMES}(?<![\w.])(?P<one>{_FACTOR})(?:\([^()\n]*\))?\s*\+\s*"
    rf"\(\s*1\s*[-\u2212]\s*(?P=gate)\s*\){_TIMES}(?P<other>{_FACTOR})"
)
_TURNED = re.compile(
    rf"\(\s*1\s*[-\u2212]\s*(?P<gate>[A-Za-z]\w*)\s*\){_TIMES}(?P<other>{_FACTOR})(?:\([^()\n]*\))?\s*\+\s*"
    rf"(?P=gate){_TIMES}(?<![\w.])(?P<one>{_FACTOR})"
)


def documented_mix_findings(target: Any) -> Iterator[Finding]:
    """A gate that multiplies what 1 - gate multiplies by the documentation, under the same names.

    Where the code multiplies it by both, as in another branch, or gives what is mixed other names, nothing is known.

    Args:
        target: a class, a function, or a module.
    """
    for part, text in parts_of(target):
        documented = (each for kind in (ast.ClassDef, ast.FunctionDef) for each in nodes_of(text, kind))
        told = [*(ast.get_docstring(each) or "" for each in documented), *comments_of(part)]
        written = [each for said in told for each in _mixes(said)]
        for gate, one, other in dict.fromkeys(written):
            by_gate, by_rest = _multiplied(text, gate)
            names = {one.lower(): "gate", other.lower(): "rest"}
            wrong = [(name, line) for name, line in by_gate if names.get(name) == "rest"]
            wrong += [(name, line) for name, line in by_rest if names.get(name) == "gate"]
            right = [name for name, _ in by_gate if names.get(name) == "gate"]
            right += [name for name, _ in by_rest if names.get(name) == "rest"]
            if wrong and not right and by_gate and by_rest:
                first, second = (each.rstrip("_") for each in (one, other))
                message = (
                    f"by its documentation {gate} multiplies {first}, and 1 - {gate} multiplies {second}; the code "
                    "does it the other way around"
                )
                yield Finding("violation", "mix-as-documented", "output", message, line_in(part, wrong[0][1]))
                return


def _mixes(text: str) -> Iterator[tuple[str, str, str]]:
    """The gate, what it multiplies, and what the rest of 1 does, of each formula in a text."""
    for pattern in (_MIX, _TURNED):
        for each in pattern.finditer(text):
            if each["one"].lower() != each["other"].lower():
                yield each["gate"], each["one"], each["other"]


def _multiplied(text: str, gate: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The names that a gate multiplies in the code, and those that 1 - gate does, with their lines."""
    by_gate, by_rest = list[tuple[str, int]](), list[tuple[str, int]]()
    for each in nodes_of(text, ast.BinOp):
        if not isinstance(each.op, ast.Mult):
            continue
        for factor, mixed in ((each.left, each.right), (each.right, each.left)):
            name = ast.unparse(mixed).rpartition(".")[2].lower()
            if ast.unparse(factor).rpartition(".")[2] == gate:
                by_gate.append((name, each.lineno))
            elif re.fullmatch(rf"1(?:\.0*)? - (?:self\.)?{re.escape(gate)}", ast.unparse(factor)):
                by_rest.append((name, each.lineno))
    return by_gate, by_rest
