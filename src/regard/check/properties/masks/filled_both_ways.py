"""What the text of a function says of a mask: on which side of it scores are hidden, and on which weights are zero."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["fill_of_the_kept", "written_number"]

_SHAPED = frozenset(
    [
        "unsqueeze",
        "expand",
        "view",
        "reshape",
        "to",
        "bool",
        "float",
        "type",
        "type_as",
        "repeat",
        "squeeze",
        "expand_as",
        "contiguous",
        "clone",
        "int",
        "long",
        "rearrange",
        "repeat_interleave",
        "flatten",
        "transpose",
        "permute",
    ]
)
"""Calls that leave it to a mask what its numbers mean."""
_NEGATIONS = frozenset(("logical_not", "bitwise_not"))
_FILLS = frozenset(("masked_fill", "masked_fill_"))
_LOW = -99.0
"""Not above it: a number that takes all weight of a score."""

_Side = tuple[str, bool]
"""A mask as it came into the function, and whether what is asked is its negation."""


def fill_of_the_kept(function: ast.FunctionDef) -> str:
    """The mask by which scores are hidden on one side, and weights made of them set to zero on the other; or nothing.

    Lines are read in their order; a name that is given something else is another mask from there on.

    Args:
        function: which computes attention.
    """
    reader = _Reader()
    reader.read(function.body, branches=0)
    for mask, is_negated in reader.hidden:
        if (mask, not is_negated) in reader.emptied - reader.hidden and (mask, is_negated) not in reader.emptied:
            return mask.partition("#")[0]
    return ""


class _Reader:
    """Reads the lines of a function."""

    def __init__(self) -> None:
        self.sides: dict[str, _Side] = {}
        self.low: set[str] = set()
        self.masked: set[str] = set()
        """What is made of scores that are hidden: those of another softmax, as a router's, are not its weights."""
        self.weights: set[str] = set()
        self.hidden: set[_Side] = set()
        """The sides on which scores are made too small to have weight."""
        self.emptied: set[_Side] = set()
        """The sides on which weights, or what is made of them, are zero."""
        self._others = 0

    def read(self, body: list[ast.stmt], branches: int) -> None:
        """Reads lines, which stand behind so many conditions."""
        for line in body:
            blocks = [getattr(line, each, []) for each in ("body", "orelse", "finalbody")]
            if isinstance(line, ast.FunctionDef | ast.ClassDef):
                continue
            if any(blocks):
                for block in blocks:
                    self.read(block, branches + 1)
                continue
            if self._fills(line) or any(
                isinstance(each, ast.Name) and each.id in self.masked for each in ast.walk(line)
            ):
                self.masked.update(_targets(line))
            if isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
                self._give(line.targets[0].id, line.value, is_certain=not branches)
            else:
                for each in _targets(line):
                    self._forget(each)

    def _give(self, name: str, value: ast.expr, *, is_certain: bool) -> None:
        side, before = self._side(value), self._side(ast.Name(name, ast.Load()))
        is_low, is_of_weights = self._is_low(value), self._is_of_weights(value)
        # A name that is turned in a branch means one thing behind it, and another where the branch was not taken.
        if side is not None and before is not None and (is_certain or side == before or side[0] != before[0]):
            self.sides[name] = side
        else:
            self._forget(name)
        for names, belongs in ((self.low, is_low), (self.weights, is_of_weights)):
            names.add(name) if belongs else names.discard(name)

    def _forget(self, name: str) -> None:
        self._others += 1
        self.sides[name] = (f"{name}#{self._others}", False)

    def _side(self, value: ast.expr) -> _Side | None:
        """The side of a mask on which an expression is 1; None where it is none of a mask."""
        if isinstance(value, ast.Name):
            return self.sides.get(value.id, (value.id, False))
        if isinstance(value, ast.Subscript):
            return self._side(value.value)
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Invert | ast.Not):
            return _turned(self._side(value.operand))
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and written_number(value.left) == 1:
            return _turned(self._side(value.right))
        if isinstance(value, ast.Compare) and len(value.ops) == 1 and isinstance(value.ops[0], ast.Eq | ast.NotEq):
            number = written_number(value.comparators[0])
            if number not in (0, 1):
                return None
            side = self._side(value.left)
            return side if (number == 1) == isinstance(value.ops[0], ast.Eq) else _turned(side)
        if isinstance(value, ast.Call):
            return self._side_of_call(value)
        return None

    def _side_of_call(self, call: ast.Call) -> _Side | None:
        """The same of a call of a function or of a method, which may give a mask another shape, or turn it."""
        name = _called(call)
        if name not in _SHAPED | _NEGATIONS:
            return None
        of_method = isinstance(call.func, ast.Attribute) and not _is_module(call.func.value)
        taken = call.func.value if of_method and isinstance(call.func, ast.Attribute) else next(iter(call.args), None)
        side = None if taken is None else self._side(taken)
        return _turned(side) if name in _NEGATIONS else side

    def _fills(self, line: ast.stmt) -> bool:
        """What a line hides and empties; whether it hides something."""
        hides = False
        for each in ast.walk(line):
            for filled, side, value in self._filled(each):
                if side is None:
                    continue
                if value is None or written_number(value) == 0:
                    if self._is_of_weights(filled):
                        self.emptied.add(side)
                elif self._is_low(value) and not self._is_of_weights(filled):
                    self.hidden.add(side)
                    hides = True
                    if isinstance(filled, ast.Name):
                        self.masked.add(filled.id) if _is_in_place(each) else None
        return hides

    def _filled(self, node: ast.AST) -> Iterator[tuple[ast.expr, _Side | None, ast.expr | None]]:
        """What is filled, on which side of a mask, and with what; None for zeros that a product makes."""
        if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) >= 2:
            values = [*node.args, *(one.value for one in node.keywords)]
            if _called(node) in _FILLS and isinstance(node.func, ast.Attribute):
                yield node.func.value, self._side(values[0]), values[1]
            elif _called(node) == "where" and len(values) == 3:
                yield values[2], self._side(values[0]), values[1]
                yield values[1], _turned(self._side(values[0])), values[2]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if self._is_low(one):
                    yield ast.Name("", ast.Load()), self._side(other), one
                elif self._is_of_weights(one):
                    yield one, _turned(self._side(other)), None

    def _is_low(self, value: ast.expr) -> bool:
        """Whether an expression is a number that takes all weight of a score, by its text."""
        if isinstance(value, ast.Name):
            return value.id in self.low
        number, text = written_number(value), ast.unparse(value)
        if number is not None:
            return number <= _LOW
        return "finfo(" in text and (text.endswith(".min") or (text.startswith("-") and text.endswith(".max")))

    def _is_of_weights(self, value: ast.expr) -> bool:
        """Whether an expression is made by a softmax, or of what one made."""
        return any(
            (isinstance(each, ast.Name) and each.id in self.weights)
            or (isinstance(each, ast.Call) and self._is_softmax_of_masked(each))
            for each in ast.walk(value)
        )

    def _is_softmax_of_masked(self, call: ast.Call) -> bool:
        if "softmax" not in _called(call) or "log" in _called(call):
            return False
        return any(
            (isinstance(each, ast.Name) and each.id in self.masked)
            or any(value is not None and self._is_low(value) for _, _, value in self._filled(each))
            for part in ast.iter_child_nodes(call)
            for each in ast.walk(part)
        )


def _is_in_place(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node).endswith("_")


def _turned(side: _Side | None) -> _Side | None:
    return None if side is None else (side[0], not side[1])


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_module(value: ast.expr) -> bool:
    """Whether a name is that of a library, as in `torch.logical_not(mask)`."""
    return isinstance(value, ast.Name) and value.id in ("torch", "einops", "F")


def _targets(line: ast.stmt) -> Iterator[str]:
    """The names that a line gives something to."""
    for each in ast.walk(line):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def written_number(value: ast.expr) -> float | None:
    """The number that an expression writes, as -1e9, -torch.inf or float("-inf"); None where it is none."""
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        number = written_number(value.operand)
        return None if number is None else -number
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float) and not isinstance(value.value, bool):
        return float(value.value)
    if isinstance(value, ast.Attribute) and value.attr == "inf":
        return float("inf")
    if isinstance(value, ast.Call) and _called(value) == "float" and len(value.args) == 1:
        said = value.args[0].value if isinstance(value.args[0], ast.Constant) else None
        try:
            return float(said) if isinstance(said, str) else written_number(value.args[0])
        except ValueError:
            return None
    return None
