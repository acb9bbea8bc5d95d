"""What each layer of a stack is to be given of the layer before it, and is given as None every time."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding
from regard.check.target import Invocation

__all__ = ["carried_state_findings"]

_OF_THE_LAYER_BEFORE = re.compile(r"(?:\w+_)?prev(?:ious)?(?:_\w+)?")
"""In the name of an argument of a layer; caches of earlier calls are called past."""


def carried_state_findings(invocation: Invocation) -> Iterator[Finding]:
    """A loop over layers that hands each of them a variable that is None, and throws away what they return beside.

    He et al. 2021, "RealFormer": the scores of a layer are added to those of the next one.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    for kind in dict.fromkeys(type(each) for each in target.modules()):
        if kind.__module__.startswith("torch.") or "forward" not in vars(kind):
            continue
        try:
            lines, first = inspect.getsourcelines(kind.forward)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        taken = {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
        always_none = _always_none(tree) - taken
        for loop in (each for each in ast.walk(tree) if isinstance(each, ast.For)):
            for assigned, called in _thrown_away(loop):
                for argument in called.keywords:
                    name = argument.value.id if isinstance(argument.value, ast.Name) else ""
                    if name in always_none and _OF_THE_LAYER_BEFORE.fullmatch(argument.arg or ""):
                        message = (
                            f"each layer is given {argument.arg}={name}, which is None every time: what the layer "
                            "before returned beside its output is thrown away"
                        )
                        text = lines[assigned.lineno - 1].strip()
                        line = CodeLocation(kind.forward.__code__.co_filename, first + assigned.lineno - 1, text)
                        yield Finding("violation", "carried-to-the-next-layer", "block", message, line)
                        return


def _always_none(tree: ast.AST) -> set[str]:
    """The variables that are set to None, and to nothing else."""
    nothing = {
        target.id
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant) and each.value.value is None
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    stored = [each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return {name for name in nothing if stored.count(name) == 1}


def _thrown_away(loop: ast.For) -> Iterator[tuple[ast.Assign, ast.Call]]:
    """Calls of what a loop runs over, of whose results some are given no name."""
    layer = loop.target.id if isinstance(loop.target, ast.Name) else ""
    for each in ast.walk(loop):
        if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Call):
            continue
        is_layer = isinstance(each.value.func, ast.Name) and each.value.func.id == layer
        names = each.targets[0].elts if isinstance(each.targets[0], ast.Tuple) else []
        if is_layer and any(isinstance(one, ast.Name) and one.id.startswith("_") for one in names):
            yield each, each.value
