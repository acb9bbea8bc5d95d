"""Tables of relative positions that a call is handed: a row for each distance, before and behind (DeBERTa)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.check.target.argument import DISTANCES, Argument, nodes_of, source_of, text_of
from regard.check.target.draft import Draft
from regard.check.target.names import is_bias
from regard.check.target.position_values import QUERY_BIAS, distance_candidates, query_bias_candidates
from regard.check.target.preparation import modules_in

__all__ = ["OF_DISTANCES", "distance_values", "of_relative_positions", "with_distances"]

RELATIVE_TABLE = "relative table"
"""The role of such an argument."""
OF_DISTANCES = (RELATIVE_TABLE, DISTANCES, QUERY_BIAS)
"""The roles of what is given for distances."""
_U_OR_V = re.compile(r"(?P<before>(?:\w*_)?)[uv](?P<behind>(?:_bias)?)")
"""The biases of queries of Transformer-XL: one beside keys, and one beside positions."""


def distance_values(role: str, name: str) -> dict[str, Callable[[Draft], Any]]:
    """What may be given for an argument of such a role, by a name for each."""
    if role == RELATIVE_TABLE:
        return {"of both sides": lambda draft: _relative_table(draft, name)}
    return dict(distance_candidates() if role == DISTANCES else query_bias_candidates())


def of_relative_positions(target: Any, argument: Argument) -> Argument:
    """The argument; one whose rows are read from -n to n, or up to 2 n, with n of the module, is such a table.

    It has to be given, although a default says that it has not, where nothing asks whether it is there.
    """
    source = _source(target)
    if argument.role is not None or (not argument.required and argument.default is not None):
        return argument
    if _number_of_rows(target, source, argument.name) is None or _is_asked(source, argument.name):
        return argument
    return replace(argument, role=RELATIVE_TABLE, required=True)


def with_distances(named: list[Argument], source: str) -> list[Argument]:
    """The arguments; one that two biases of queries are named after, as r_w_bias and r_r_bias, is of distances.

    Also where the module keeps these, as its parameters.

    Args:
        named: the arguments.
        source: the text of what is called.
    """
    given = [each for each in named if each.required and each.role is None]
    for each in given:
        biases = [one for one in given if is_bias(one.name) and one.name.startswith(f"{each.name}_")]
        if len(biases) == 2:
            roles = {each.name: DISTANCES} | dict.fromkeys((one.name for one in biases), QUERY_BIAS)
            return [replace(one, role=roles.get(one.name, one.role)) for one in named]
        if len({*re.findall(rf"\bself\.({re.escape(each.name)}_[a-z]_bias)\b", source)}) == len("uv"):
            return [replace(one, role=DISTANCES) if one is each else one for one in named]
    return _with_u_and_v(named)


def _with_u_and_v(named: list[Argument]) -> list[Argument]:
    """The same of u and v, as the paper calls the two biases, beside vectors of positions; v alone are values."""
    given = [each for each in named if each.required]
    found = {each.name: match.groups() for each in given if (match := _U_OR_V.fullmatch(each.name))}
    biases = list(found)
    places = [each.name for each in given if each.role in ("rope", "positions") or each.name == "r"]
    others = {each.role for each in given if each.name not in biases}
    if len(biases) != 2 or len(places) != 1 or others & {"q", "k"} or len({*found.values()}) != 1:
        return named
    roles = {places[0]: DISTANCES} | dict.fromkeys(biases, QUERY_BIAS)
    return [replace(each, role=roles.get(each.name, each.role)) for each in named]


def _relative_table(draft: Draft, name: str) -> Tensor:
    """Vectors as wide as the tokens, as many as the code reads."""
    rows = _number_of_rows(draft.target, _source(draft.target), name)
    return draft.draw(rows or 2 * draft.tokens, draft.width)


def _source(target: Any) -> str:
    """The text of a target; of a module, the class in which its forward stands, which may be one that it extends."""
    if not isinstance(target, nn.Module):
        return source_of(target)
    return text_of(next((each for each in type(target).__mro__ if "forward" in vars(each)), type(target)))


def _number_of_rows(target: Any, source: str, name: str) -> int | None:
    """Twice the number n of the module that rows are read by, as by table[n - span : n + span, :]; None without one."""
    for each in nodes_of(source, ast.Subscript):
        if not isinstance(each.value, ast.Name) or each.value.id != name or not isinstance(each.slice, ast.Tuple):
            continue
        rows, *others = each.slice.elts
        if not isinstance(rows, ast.Slice) or [ast.unparse(one) for one in others] != [":"]:
            continue
        begin, end = rows.lower, rows.upper
        is_of_both = isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and _is_less(begin)
        is_twice = isinstance(end, ast.BinOp) and isinstance(end.op, ast.Mult) and _is_zero(begin)
        if is_of_both or is_twice:
            found = [number for one in ast.walk(rows) for number in _numbers(target, source, one)]
            if found:
                return 2 * max(found)
    return None


def _is_less(bound: ast.AST | None) -> bool:
    return isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Sub)


def _is_zero(bound: ast.AST | None) -> bool:
    return bound is None or (isinstance(bound, ast.Constant) and bound.value == 0)


def _numbers(target: Any, source: str, node: ast.AST) -> list[int]:
    """The number that self keeps under a name; of a name of the code, those that it is made of."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        values = [getattr(each, node.attr, None) for each in modules_in(target)]
        return [value for value in values if type(value) is int and value > 0]
    if not isinstance(node, ast.Name):
        return []
    made = [each.value for each in nodes_of(source, ast.Assign) if ast.unparse(each.targets[0]) == node.id]
    attributes = [one for value in made for one in ast.walk(value) if isinstance(one, ast.Attribute)]
    return [number for one in attributes for number in _numbers(target, source, one)]


def _is_asked(source: str, name: str) -> bool:
    """Whether the code asks whether it is there."""
    tests = [ast.unparse(each.test) for each in nodes_of(source) if isinstance(each, ast.If | ast.IfExp)]
    return any(f"{name} is " in each or each in (name, f"not {name}") for each in tests)
