"""Inputs of a call as a user writes them: ``x=(B,T,D), freqs=rope(T,d), mask=causal(T), n=3``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.check.target.position_values import rotary_angles
from regard.check.target.sizes import Sizes
from regard.errors import InputError

__all__ = ["InputFactory", "parse_inputs"]

LETTERS = {
    "B": "batch",
    "T": "tokens",
    "S": "context",
    "H": "heads",
    "D": "width of the tokens",
    "d": "width of a head",
    "V": "number of token ids",
}
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
EXAMPLE = "x=(B,T,D), freqs=rope(T,d), mask=causal(T), n=3"


def _rope(_: torch.Generator, tokens: int, width: int) -> Tensor:
    angles = rotary_angles(tokens, width)
    return torch.polar(torch.ones_like(angles), angles)


def _both(tokens: int, width: int) -> Tensor:
    angles = rotary_angles(tokens, width)
    return torch.cat((angles, angles), -1)


FUNCTIONS: dict[str, tuple[int | None, Callable[..., Any]]] = {
    "rope": (2, _rope),
    "cos": (2, lambda _, tokens, width: _both(tokens, width).cos()),
    "sin": (2, lambda _, tokens, width: _both(tokens, width).sin()),
    "angles": (2, lambda _, tokens, width: rotary_angles(tokens, width)),
    "causal": (1, lambda _, tokens: torch.ones(tokens, tokens, dtype=torch.bool).tril()),
    "ones": (None, lambda _, *shape: torch.ones(shape, dtype=torch.float64)),
    "zeros": (None, lambda _, *shape: torch.zeros(shape, dtype=torch.float64)),
    "true": (None, lambda _, *shape: torch.ones(shape, dtype=torch.bool)),
    "arange": (1, lambda _, tokens: torch.arange(tokens)),
    "ids": (None, lambda generator, *sizes: torch.randint(sizes[-1], sizes[:-1], generator=generator)),
}
"""By name: how many numbers it takes (None: a shape), and what it makes. rope is complex, (tokens, width / 2); cos and
sin are (tokens, width), each angle in both halves; causal is True where a query may attend; the last size of ids is how
many of them there are."""


@dataclass(frozen=True, eq=False)
class InputFactory:
    """Makes the inputs of one set of sizes."""

    text: str
    values: dict[str, ast.expr]

    def __call__(self, sizes: Sizes) -> dict[str, Any]:
        """The inputs by name: the same numbers for the same sizes.

        Raises:
            InputError: a size is no positive number.
        """
        return {
            name: _value(node, sizes, torch.Generator().manual_seed(number), self.text)
            for number, (name, node) in enumerate(self.values.items())
        }


def parse_inputs(text: str) -> InputFactory:
    """Read inputs of a call.

    Args:
        text: NAME=VALUE, separated by commas. A value is a shape of a tensor of random numbers, in letters (B batch,
            T tokens, S context, H heads, D width of the tokens, d width of a head, V token ids), numbers and products;
            one of `FUNCTIONS` of such sizes; a tuple of those; or a number, a text, True, False or None.

    Raises:
        InputError: another form; the message says which part, and what is expected.
    """
    try:
        call = ast.parse(f"_({text})", mode="eval").body
    except SyntaxError as error:
        raise InputError(f"--args {text!r} cannot be read ({error.msg}): write it as in {EXAMPLE!r}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise InputError(f"--args {text!r} cannot be read: write it as in {EXAMPLE!r}")
    if call.args:
        raise InputError(f"--args: {ast.unparse(call.args[0])} has no name: write NAME={ast.unparse(call.args[0])}")
    values: dict[str, ast.expr] = {}
    for each in call.keywords:
        if each.arg is None:
            raise InputError(f"--args {text!r} cannot be read: write it as in {EXAMPLE!r}")
        values[each.arg] = each.value
    factory = InputFactory(text, values)
    factory(Sizes(batch=2, tokens=5, context=7, heads=3, kv_heads=3, d_head=4))
    return factory


def _value(node: ast.expr, sizes: Sizes, generator: torch.Generator, text: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value  # type: ignore[operator]
    if isinstance(node, ast.Tuple | ast.List):
        if isinstance(node, ast.Tuple) and node.elts and all(_is_size(each) for each in node.elts):
            shape = [_size(each, sizes) for each in node.elts]
            return torch.randn(shape, generator=generator, dtype=torch.float64)
        values = [_value(each, sizes, generator, text) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    name = _called(node)
    if name is not None and isinstance(node, ast.Call):
        if name not in FUNCTIONS:
            raise InputError(f"--args: {name}(...) is unknown: there are {', '.join(FUNCTIONS)}")
        count, function = FUNCTIONS[name]
        if node.keywords or (count is not None and len(node.args) != count):
            raise InputError(f"--args: {name} takes {count} sizes, such as {_example(name, count)}")
        return function(generator, *(_size(each, sizes) for each in node.args))
    if _is_size(node):
        return _size(node, sizes)
    raise InputError(f"--args: {ast.unparse(node)} cannot be read: write it as in {EXAMPLE!r}")


def _example(name: str, count: int | None) -> str:
    return f"{name}({', '.join(['B', 'T', 'V'] if name == 'ids' else ['T', 'd'][: count or 2])})"


def _called(node: ast.expr) -> str | None:
    """The name of the function in a call."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_size(node.left) and _is_size(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int)


def _size(node: ast.expr, sizes: Sizes) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return int(OPERATORS[type(node.op)](_size(node.left, sizes), _size(node.right, sizes)))
    known = {
        "B": sizes.batch,
        "T": sizes.tokens,
        "S": sizes.context,
        "H": sizes.heads,
        "D": sizes.d_model,
        "d": sizes.d_head,
        "V": sizes.vocab,
    }
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    letters = ", ".join(f"{letter} {means}" for letter, means in LETTERS.items())
    raise InputError(f"--args: {ast.unparse(node)} is no size: the letters are {letters}")
