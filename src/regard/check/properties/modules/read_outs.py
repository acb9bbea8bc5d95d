"""What a call writes beside its output, as the weights or a log: to ask for it changes nothing."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.errors import Failed

__all__ = ["read_out_findings"]

_WEIGHTS = re.compile(
    r"(?:need|return|output|give|ret|want|collect|record)_?"
    r"(?:attn|attention|att|all_attn|attn_?weights?|weights?|attentions?|attention_?weights?|attn_?probs?"
    r"|attn_?maps?|attention_?maps?|(?:attn_?|attention_?)?scores?|entropy)"
)
"""Flags that ask for the weights beside the output."""
_APPENDS, _SETS = frozenset({"append", "extend"}), frozenset({"update", "setdefault"})
MOVED = 1e-8
"""Of the largest number of an output."""


def read_out_findings(invocation: Invocation) -> Iterator[Finding]:
    """An output that is another one where something is asked for beside it.

    Args:
        invocation: a call of a module or of a function.
    """
    target = invocation.target
    called = target.forward if isinstance(target, nn.Module) else target
    try:
        parameters = inspect.signature(called).parameters.values()
    except (ValueError, TypeError):
        return
    asked: list[tuple[str, Any, str]] = []
    for each in parameters:
        if each.default is None and invocation.arguments.get(each.name) is None:
            holder = _holder(called, each.name)
            asked += (
                [(each.name, holder, f"{each.name}={holder}, which the call writes into,")]
                if holder is not None
                else []
            )
        elif each.default is False and _WEIGHTS.fullmatch(each.name.lower()):
            asked.append((each.name, True, f"{each.name}=True, which asks for the weights,"))
    given = {**invocation.arguments}
    causal = [{}, *({flag: True} for flag in invocation.causal_flags)]  # which code may forget where it is asked
    for (name, value, what), flags in itertools.product(asked, causal):
        try:
            without = False if value is True else None
            before = invocation.outputs(invocation.run({**given, **flags, name: without}))
            after = invocation.outputs(invocation.run({**given, **flags, name: value}))
        except (Failed, RuntimeError):
            continue
        if value is True and len(after) <= len(before):
            continue  # they are returned in the place of the output
        if not before or not after or before[0].shape != after[0].shape:
            continue
        one, two = before[0].detach(), after[0].detach()
        if not bool(one.isfinite().all() & two.isfinite().all()):
            continue
        gap = float((one - two).abs().max()) if one.numel() else 0.0
        if gap > MOVED * max(1.0, float(one.abs().max())):
            message = f"with {what} the output itself differs by up to {gap:.2g} from that without"
            if flags:  # without which it is the same
                message = f"beside {next(iter(flags))}=True, {message}: not the same keys are hidden"
                yield Finding("violation", "mask-pattern", "mask", message)
                return
            yield Finding("violation", "read-outs-change-nothing", "output", message)
            return


def _holder(called: Any, name: str) -> dict[str, Any] | list[Any] | None:
    """An empty collection for an argument that is written into and read for nothing; None of any other."""
    try:
        tree = ast.parse(textwrap.dedent(source_of(called)))
    except SyntaxError:
        return None
    found: dict[str, Any] | list[Any] | None = None
    known = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _is_name(node.left, name) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            known.add(id(node.left))
        elif isinstance(node, ast.Subscript) and _is_name(node.value, name) and isinstance(node.ctx, ast.Store):
            known.add(id(node.value))
            found = {}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            method = node.value.func
            if isinstance(method, ast.Attribute) and _is_name(method.value, name) and method.attr in _APPENDS | _SETS:
                known.add(id(method.value))
                found = [] if method.attr in _APPENDS else {}
    uses = [each for each in ast.walk(tree) if _is_name(each, name)]
    return found if all(id(each) in known for each in uses) else None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
