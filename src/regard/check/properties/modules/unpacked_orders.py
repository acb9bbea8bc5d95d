"""Several values in one, as the shares of a mixture: taken apart in the order in which they were put together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.check.properties.code import line_in, parts_of
from regard.check.properties.finding import Finding
from regard.check.target.argument import nodes_of, taken_by

__all__ = ["unpacked_order_findings"]


@dataclass(frozen=True)
class _Order:
    """Names that stand in a row, where one name is given to all, or all are taken from it."""

    name: str
    several: tuple[str, ...]
    part: Any
    line: int
    """In the text of the part, counted from 1."""


def unpacked_order_findings(target: Any) -> Iterator[Finding]:
    """A tuple that is made of some names, and taken apart into the same names in another order.

    Of what an object keeps, or a function is handed under the same name. Where the code makes it in several orders, or
    of other names as well, which one is meant is not known.

    Args:
        target: what is judged.
    """
    packed, unpacked = list[_Order](), list[_Order]()
    for part, text in parts_of(target):
        for function in nodes_of(text, ast.FunctionDef):
            _read(function, part, packed, unpacked)
    for taken in unpacked:
        orders = {each.several for each in packed if each.name == taken.name}
        if len(orders) != 1:
            continue
        (given,) = orders
        if given != taken.several and sorted(given) == sorted(taken.several):
            message = (
                f"{taken.name} is made of {', '.join(given)}, in this order, and taken apart as "
                f"{', '.join(taken.several)}: some of them change places"
            )
            yield Finding("violation", "unpacked-as-packed", "call", message, line_in(taken.part, taken.line))
            return


def _read(function: ast.FunctionDef, part: Any, packed: list[_Order], unpacked: list[_Order]) -> None:
    """Note the rows of names in a function: what it puts together, and what it takes apart of its own or of itself."""
    nodes = [*ast.walk(function)]
    arguments = {each.arg for each in taken_by(function)}
    written = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        (left,), right = node.targets, node.value
        if (made := _names(right)) and (name := _name(left, arguments | written)):
            packed.append(_Order(name, made, part, node.lineno))
        elif (taken := _names(left)) and (name := _name(right, arguments | written)):
            unpacked.append(_Order(name, taken, part, node.lineno))


def _names(node: ast.expr) -> tuple[str, ...]:
    """The names in a row; none of anything else, or where one is there twice."""
    if isinstance(node, ast.Tuple | ast.List) and all(isinstance(each, ast.Name) for each in node.elts):
        found = tuple(each.id for each in node.elts if isinstance(each, ast.Name))
        return found if len({*found}) == len(found) > 1 else ()
    return ()


def _name(node: ast.expr, known: set[str]) -> str:
    """The name of an attribute of itself, or of what a function was handed or wrote; empty of anything else."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
        case ast.Name(id=name) if name in known:
            return name
    return ""
