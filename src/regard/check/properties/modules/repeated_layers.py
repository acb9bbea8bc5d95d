"""Stacks of layers in which one and the same module stands several times, or is called in the place of each."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.signature import source_of

__all__ = ["repeated_layer_findings"]

SHARED = re.compile(
    r"shar(?:e[ds]?|ing)\b|\btied?\b|universal|albert|recurren|recursi|\bloop|weight[- ]?tying|reus", re.I
)
"""In the code of a stack: its layers are meant to be one."""


def repeated_layer_findings(target: object) -> Iterator[Finding]:
    """One layer with matrices that stands twice or more in a list of modules, which nothing says is meant.

    ALBERT (Lan et al. 2020, section 3.1) and Universal Transformers apply one layer several times on purpose.
    """
    for outer in modules_in(target):
        if SHARED.search(source_of(outer)):
            continue
        for name, stack in outer.named_modules():
            layers = [*stack._modules.values()] if isinstance(stack, nn.ModuleList | nn.Sequential) else []
            first = layers[0] if len(layers) > 1 else None
            if first is None or any(each is not first for each in layers):
                continue
            if _has_matrices(first):
                message = f"the {len(layers)} layers of {name} are one and the same module: they share their parameters"
                yield Finding("violation", "layers-apart", "block", message)
                return
        for path, module in outer.named_modules():
            for layer, number in _called_for_each(module):
                message = (
                    f"{f'{path}.' if path else ''}{layer} is called {number} times, as the {number} layers: they share "
                    "their parameters"
                )
                yield Finding("violation", "layers-apart", "block", message)
                return


def _called_for_each(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The module, by its name, that a call goes through as many times as layers are asked for, and this number.

    As in `for _ in range(self.num_layers): x = self.layer(x)`.
    """
    source = source_of(type(module).forward)
    if "range(" not in source or SHARED.search(source_of(module)):
        return
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return
    for each in ast.walk(tree):
        if not isinstance(each, ast.For) or len(each.body) != 1 or not isinstance(each.body[0], ast.Assign):
            continue
        counts = [name for name in _of_self(each.iter) if constructor_meaning(name) == "layers"]
        number = getattr(module, counts[0], None) if len(counts) == 1 else None
        called = each.body[0].value
        if type(number) is int and number > 1 and isinstance(called, ast.Call) and _goes_on(each.body[0], called):
            name = next(_of_self(called.func), "") if isinstance(called.func, ast.Attribute) else ""
            layer = getattr(module, name, None)
            if isinstance(layer, nn.Module) and not isinstance(layer, nn.ModuleList) and _has_matrices(layer):
                yield name, number


def _goes_on(assigned: ast.Assign, called: ast.Call) -> bool:
    """Whether what a call returns is what the next one is given first."""
    target, first = assigned.targets[0], next(iter(called.args), None)
    return isinstance(target, ast.Name) and isinstance(first, ast.Name) and target.id == first.id


def _of_self(tree: ast.AST) -> Iterator[str]:
    """The names of the attributes of self that are read."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
            yield each.attr


def _has_matrices(module: nn.Module) -> bool:
    return any(each.ndim > 1 for each in module.parameters())
