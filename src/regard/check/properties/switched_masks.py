"""Masks that are read only where an argument of the constructor says so, and it does not."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.signature import source_of

__all__ = ["switched_off"]


def switched_off(invocation: Invocation, name: str) -> Finding | None:
    """That a mask is not read, as an argument of the constructor that is named after masks is False; None elsewhere.

    Any other setting says nothing of masks: code that reads a mask of padding where it is causal alone drops it.

    Args:
        invocation: the call.
        name: of its mask.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return None
    try:
        tree = ast.parse(textwrap.dedent(source_of(type(target).forward)))
        told = set(inspect.signature(type(target).__init__).parameters)
    except (SyntaxError, ValueError, TypeError):
        return None
    switches = {each for each in told if "mask" in each.lower() and getattr(target, each, None) is False}
    inside = {id(node) for each in ast.walk(tree) if (body := _behind(each, switches)) for node in _walk(body)}
    reads = [
        each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == name and not _is_written(each)
    ]
    if not reads or not all(id(each) in inside for each in reads):
        return None
    switch = ", ".join(sorted(switches))
    return Finding("open", "mask-switch", "mask", f"{name} is not read, as {switch}=False says: not exercised")


def _behind(node: Any, switches: set[str]) -> list[ast.AST]:
    """What is computed only where a switch is on."""
    if isinstance(node, ast.If) and _asks(node.test, switches):
        return [*node.body, node.test]
    if isinstance(node, ast.IfExp) and _asks(node.test, switches):
        return [node.body, node.test]
    return []


def _asks(test: ast.expr, switches: set[str]) -> bool:
    """Whether a condition is false where the switch is off."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_asks(each, switches) for each in test.values)
    return (
        isinstance(test, ast.Attribute)
        and test.attr in switches
        and isinstance(test.value, ast.Name)
        and test.value.id == "self"
    )


def _walk(parts: list[ast.AST]) -> list[ast.AST]:
    return [node for each in parts for node in ast.walk(each)]


def _is_written(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
