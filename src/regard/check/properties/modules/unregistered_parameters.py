"""Parameters that a module computes with and does not register: those of layers in a plain list, tuple or dict."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of, tree_of
from regard.check.target.classes import own_classes
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, drawn_like

__all__ = ["MOVED", "is_attribute", "is_meant", "kept_as", "unregistered_parameter_findings"]

MOVED = 1e-9
"""The smallest change of an output that is one."""
ON_PURPOSE = re.compile(
    r"\b(?:un|not |n't |without |avoid\w* |prevent\w* |never )(?:be |being |to be )?regist"
    r"|\bhid(?:e|es|den|ing) .{0,30}(?:from|parameters|state)"
    r"|\bnot? .{0,30}(?:trained|learned|optimi[sz]ed|state_dict|saved|parameters\(\))",
    re.I,
)
"""In the text of a class: what it holds is kept from its parameters."""
DRAWING = re.compile(r"_*(?:reset|re_?init|init|draw|num|n|count|tie)", re.I)
"""How methods begin that name parameters and hand out none, as reset_parameters."""
COLLECTING = frozenset({"list", "tuple", "dict", "zip", "enumerate", "reversed", "sorted", "set"})
"""Functions that return what they are given."""


def unregistered_parameter_findings(invocation: Invocation) -> Iterator[Finding]:
    """The first list, tuple or dict whose layers the module constructs, computes with and does not register.

    Not of what was handed to the constructor, which its caller may register, nor of what does not learn.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or not any(_plain(each) for each in target.modules()):
        return
    live: nn.Module = copied(target)
    registered = {id(each) for each in live.parameters()}
    for path, owner in live.named_modules():
        for name, value in _plain(owner):
            left = [each for each in _parameters(value) if id(each) not in registered and each.requires_grad]
            if not left or not _is_constructed(type(owner), name) or is_meant(type(owner)):
                continue
            if _has_effect(invocation, live, left):
                place, kind = f"{path}.{name}" if path else name, type(value).__name__
                message = (
                    f"{place} is a plain {kind}: the {len(left)} parameters in it change the output, and neither "
                    "parameters() nor state_dict() has them: no optimizer trains them"
                )
                yield Finding("violation", "parameters-registered", "projections", message)
                return


def _plain(owner: nn.Module) -> list[tuple[str, Any]]:
    """The attributes of a module that are collections of Python with modules or parameters in them."""
    return [
        (name, value)
        for name, value in vars(owner).items()
        if not name.startswith("_") or name not in vars(nn.Module())
        if type(value) in (list, tuple, dict) and any(True for _ in _parameters(value))
    ]


def _parameters(value: Any, depth: int = 3) -> Iterator[nn.Parameter]:
    """Those in a collection, or in the modules in it."""
    if isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif type(value) in (list, tuple, dict) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _parameters(each, depth - 1)


def _is_constructed(kind: type, name: str) -> bool:
    """Whether the constructor makes what it keeps under a name, of nothing that it was handed over by itself."""
    found = False
    for each in own_classes(kind):
        constructor = vars(each).get("__init__")
        if not inspect.isfunction(constructor):
            continue
        tree = tree_of(source_of(constructor))
        given = {*list(inspect.signature(constructor).parameters)[1:]}
        for value in kept_as(tree, name):
            if given & {*_held(value)}:
                return False
            found = True
    return found


def kept_as(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to an attribute of self, or put into it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(is_attribute(each, name) for each in targets):
                yield node.value
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_attribute(node.func.value, name)
        ):
            yield from node.args


def is_attribute(node: ast.AST, name: str) -> bool:
    """Whether an expression is self.NAME, or a part of it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    is_of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return is_of_self and getattr(node, "attr", "") == name


def _held(node: ast.AST) -> Iterator[str]:
    """The names whose values are in what an expression makes; not those that a function or a class is called with."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Call):
        is_collecting = isinstance(node.func, ast.Name) and node.func.id in COLLECTING
        for each in node.args if is_collecting else ():
            yield from _held(each)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        yield from _held(node.elt)
        if isinstance(node.elt, ast.Name):
            for one in node.generators:
                yield from _held(one.iter)
    elif isinstance(node, ast.DictComp):
        yield from _held(node.value)
    elif isinstance(node, ast.Dict):
        for each in node.values:
            yield from _held(each)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _held(child)


def is_meant(kind: type) -> bool:
    """Whether a class says that something is not registered, or hands out parameters by a method of its own."""
    own = own_classes(kind)
    return any("parameters" in name and not DRAWING.match(name) for each in own for name in vars(each)) or any(
        ON_PURPOSE.search(source_of(each)) for each in own
    )


def _has_effect(invocation: Invocation, live: nn.Module, parameters: list[nn.Parameter]) -> bool:
    """Whether an output changes with some parameters, and learns of them: it is not computed without gradients."""
    try:
        with torch.enable_grad():
            before = [each for each in invocation.outputs(invocation.run(target=live)) if isinstance(each, Tensor)]
        free = [each for each in before if each.requires_grad]
        total = sum((each.sum() for each in free), torch.zeros(()))
        slopes = torch.autograd.grad(total, parameters, allow_unused=True) if free else ()
        if not any(each is not None for each in slopes):
            return False
        with torch.no_grad():
            for each in parameters:
                each.add_((0.3 * drawn_like(each, seed=3)).to(each.dtype))
        after = invocation.outputs(invocation.run(target=live))
    except (Failed, RuntimeError):
        return False
    pairs = zip(before, after, strict=False)
    return any(one.shape != two.shape or bool(((one - two).abs() > MOVED).any()) for one, two in pairs)
