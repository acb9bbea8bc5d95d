"""Matrices of several names that a list has several times over: they were to be one each, and are one."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.code import code_of, line_of
from regard.check.properties.finding import Finding
from regard.check.properties.modules.repeated_layers import SHARED
from regard.check.properties.outputs.output_matrices import ON_PURPOSE
from regard.check.target.argument import source_of
from regard.check.target.names import call_meaning
from regard.check.target.preparation import modules_in

__all__ = ["repeated_projection_findings"]


def repeated_projection_findings(target: object) -> Iterator[Finding]:
    """One module with matrices that has several names, as its constructor repeats a list that it stands in once.

    As in `self.q, self.k, self.v = [nn.Linear(d, d)] * 3`: the list is three times as long, and the layer is the same.
    What a line calls by two names, as `self.k = self.q`, is shared on purpose, and so is what the code says so of. In a
    dict of modules, those for queries, keys and values were to have one each.
    """
    for outer in modules_in(target):
        code = code_of(outer)
        if SHARED.search(code) or ON_PURPOSE.search(code):
            continue
        for path, module in outer.named_modules():
            is_dict = isinstance(module, nn.ModuleDict)
            if type(module).__module__.startswith("torch.") and not is_dict:
                continue
            names = dict[int, list[str]]()
            for name, part in module._modules.items():
                if part is not None and any(each.ndim > 1 for each in part.parameters()):
                    names.setdefault(id(part), []).append(name)
            several = next((each for each in names.values() if len(each) > 1), None)
            if several is None:
                continue
            prefix = f"{path}." if path else ""
            listed = f"{', '.join(f'{prefix}{each}' for each in several[:-1])} and {prefix}{several[-1]}"
            if is_dict:
                if len({"q", "k", "v"} & {call_meaning(each) for each in several}) < 2:
                    continue  # as one table for both languages
                message = f"{listed} are one and the same module: each name of the dict has its matrix"
                yield Finding("violation", "projections-apart", "projections", message, None, path)
                return
            if (repeated := _repeated(module, type(module._modules[several[0]]).__name__)) is None:
                continue
            message = f"{listed} are one and the same module: {repeated[0]} makes it once, and repeats it"
            yield Finding("violation", "projections-apart", "projections", message, repeated[1], path)
            return


def _repeated(module: nn.Module, kind: str) -> tuple[str, CodeLocation | None] | None:
    """The list in a constructor that has one new object of a class several times, and its line."""
    constructor = type(module).__init__
    try:
        (defined,) = ast.parse(textwrap.dedent(source_of(constructor))).body
    except (SyntaxError, ValueError):
        return None
    begun = line_of(constructor)
    for each in ast.walk(defined):
        if _repeats(each, kind):
            text = ast.unparse(each)
            shift = getattr(each, "lineno", 1) - getattr(defined, "lineno", 1)
            line = CodeLocation(begun.file, begun.line + shift, _text(constructor, each)) if begun is not None else None
            return text, line
    return None


def _repeats(node: ast.AST, kind: str) -> bool:
    """Whether it is [made()] * n, n * (made(),), repeat(made(), n) or dict.fromkeys(names, made())."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return any(
            isinstance(side, ast.List | ast.Tuple) and any(_makes(one, kind) for one in side.elts)
            for side in (node.left, node.right)
        )
    if not isinstance(node, ast.Call):
        return False
    at = {"repeat": 0, "fromkeys": 1}.get(_name_of(node))
    return at is not None and len(node.args) == 2 and _makes(node.args[at], kind)


def _makes(node: ast.expr, kind: str) -> bool:
    """Whether it makes an object of a class."""
    return isinstance(node, ast.Call) and _name_of(node) == kind


def _name_of(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(constructor: object, node: ast.AST) -> str:
    lines = textwrap.dedent(source_of(constructor)).splitlines()
    return lines[getattr(node, "lineno", 1) - 1].strip()
