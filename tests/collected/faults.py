"""Small faults of attention's code: an axis, an operator, a name, an argument or a line is another, or is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mutants.mutations import SWAPPED, Mutation

__all__ = ["faults_of"]

CHANGED = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
ONLY_RESHAPED = frozenset({"contiguous", "clone", "to", "float", "type_as", "size", "item", "append", "detach"})
"""Methods without which the same is computed, or nothing at all."""


def faults_of(source: str, file: str) -> Iterator[Mutation]:
    """Each place of a file's functions where one small change makes another program of it.

    Args:
        source: the file's text.
        file: what it is called in the faults.
    """
    offsets = _Offsets(source)
    seen = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = sorted({each.id for each in ast.walk(function) if isinstance(each, ast.Name)} & _assigned(function))
        for node, text, kind in _of_function(function, names):
            start, end = offsets.of(node)
            if source[start:end] != text and (start, end, text) not in seen:
                seen.add((start, end, text))
                yield Mutation(file, node.lineno, start, end, text, kind, source[start:end])


class _Offsets:
    """Where a node stands in a text, in characters."""

    def __init__(self, source: str) -> None:
        self.raw = source.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def of(self, node: ast.AST) -> tuple[int, int]:
        """Its first character, and the one after its last."""
        places = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (len(self.raw[: self.starts[line - 1] + column].decode()) for line, column in places)
        return start, end


def _assigned(function: ast.FunctionDef) -> set[str]:
    """Names of the arguments and of what a function assigns."""
    given = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
    return given | {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and _is_stored(each)}


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _of_function(function: ast.FunctionDef, names: list[str]) -> Iterator[tuple[ast.AST, str, str]]:
    """Nodes that can be replaced, by what, and what kind of fault that is."""
    for node in (each for statement in function.body for each in ast.walk(statement)):
        match node:
            case ast.BinOp(left, op, right) if type(op) in SWAPPED and isinstance(op, CHANGED):
                yield node, f"({ast.unparse(ast.BinOp(left, SWAPPED[type(op)](), right))})", "operator"
                yield node, f"({ast.unparse(left)})", "operand gone"
            case ast.Compare(left, [op], [right]) if isinstance(op, CHANGED):
                yield node, f"({ast.unparse(ast.Compare(left, [SWAPPED[type(op)]()], [right]))})", "comparison"
            case ast.UnaryOp(ast.USub() | ast.Invert() | ast.Not(), operand) if not isinstance(operand, ast.Constant):
                yield node, f"({ast.unparse(operand)})", "sign"
            case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)):
                yield node, f"-{value % 2 + 1}", "axis"
            case ast.Constant(bool() as value):
                yield node, str(not value), "constant"
            case ast.Constant(int() as value):
                yield node, str(value + 1), "constant"
                if value > 0:
                    yield node, str(value - 1), "constant"
            case ast.Call(ast.Attribute(value, attr), _, _) if attr not in ONLY_RESHAPED and not _is_module(value):
                yield node, ast.unparse(value), "method gone"
            case ast.Name(name, ast.Load()) if name in names:
                for other in names:
                    if other != name:
                        yield node, other, "name"
            case ast.Assign([ast.Name(name)], value) if any(
                isinstance(each, ast.Name) and each.id == name for each in ast.walk(value)
            ):
                yield node, "pass", "line gone"
            case ast.AugAssign() | ast.Expr(ast.Call()):
                yield node, "pass", "line gone"
            case ast.If(test) | ast.IfExp(test) if not isinstance(test, ast.Constant):
                yield test, "False", "condition"
        if isinstance(node, ast.Call):
            for i in range(len(node.keywords)):
                fewer = ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])
                yield node, ast.unparse(fewer), "argument gone"
            if len(node.args) > 1:
                yield node, ast.unparse(ast.Call(node.func, node.args[:-1], node.keywords)), "argument gone"
                for i in range(len(node.args) - 1):
                    swapped = [*node.args[:i], node.args[i + 1], node.args[i], *node.args[i + 2 :]]
                    yield node, ast.unparse(ast.Call(node.func, swapped, node.keywords)), "arguments swapped"


def _is_module(value: ast.expr) -> bool:
    """Whether a method's object is a package or the module itself, without which nothing is left."""
    return ast.unparse(value) in ("torch", "F", "nn", "np", "math", "einops", "torch.nn.functional", "self", "super()")
