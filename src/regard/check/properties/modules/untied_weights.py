"""Weights that a constructor makes one, and that are two when it has returned, as where all are drawn anew."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target.argument import source_of
from regard.check.target.preparation import modules_in

__all__ = ["untied_weight_findings"]

_TIED = re.compile(r"(?<![a-z])t(?:ie[ds]?|ying)(?![a-z])|shar(?:e[ds]?|ing)(?![a-z])", re.I)


def untied_weight_findings(target: object) -> Iterator[Finding]:
    """A weight that a constructor assigns to another module, on no condition, and that is not the one it has there.

    Press & Wolf 2017: the matrix of the embedding is that of the logits. An assignment to the same name further down
    says that it is meant.
    """
    for module in [each for outer in modules_in(target) for each in outer.modules()]:
        if type(module).__module__.startswith("torch."):
            continue
        for name, other in _tied(module):
            one, two = (_found(module, each) for each in (name, other))
            if one is None or two is None or one is two or one.data_ptr() == two.data_ptr():
                continue
            message = f"the constructor makes {name} the same as {other}, and they are two when it has returned: each "
            message += "learns by itself"
            yield Finding("violation", "weights-stay-tied", "projections", message)
            return


def _tied(module: nn.Module) -> Iterator[tuple[str, str]]:
    """The names of weights that a module's constructor makes one, as by self.head.weight = self.wte.weight."""
    source = textwrap.dedent(source_of(type(module).__init__))
    try:
        (defined,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        return
    if not isinstance(defined, ast.FunctionDef):
        return
    assigned = [
        target
        for each in ast.walk(defined)
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Attribute)
    ]
    for each in defined.body:
        if not isinstance(each, ast.Assign) or len(each.targets) != 1:
            continue
        name, other = _path(each.targets[0]), _path(each.value) or _copied_by(each.value)
        if not _path(each.value) and not (name.endswith(".weight") and _is_said_to_be_tied(each, source)):
            continue  # a copy that is meant begins as another weight, as where it is fine-tuned
        later = [one for one in assigned if one.lineno > each.lineno and _path(one)]
        touched = [_path(one) for one in later]
        if "." in name and "." in other and not any(path.startswith(one) for one in touched for path in (name, other)):
            yield name, other


def _copied_by(tree: ast.AST) -> str:
    """The weight that a new parameter is a copy of, as by nn.Parameter(self.wte.weight.clone()); empty of others."""
    is_made = isinstance(tree, ast.Call) and ast.unparse(tree.func).rpartition(".")[2] == "Parameter"
    chain = tree.args[0] if is_made and isinstance(tree, ast.Call) and tree.args else None
    is_copied = False
    while isinstance(chain, ast.Call) and isinstance(chain.func, ast.Attribute):
        is_copied |= chain.func.attr == "clone"
        chain = chain.func.value
    return _path(chain).removesuffix(".data") if is_copied and chain is not None else ""


def _is_said_to_be_tied(node: ast.stmt, source: str) -> bool:
    """Whether a comment beside an assignment, or right above it, speaks of weights that are tied, or shared."""
    lines = source.splitlines()
    near = lines[max(0, node.lineno - 2) : node.end_lineno]
    return any(_TIED.search(each.partition("#")[2]) for each in near)


def _path(tree: ast.AST) -> str:
    """What follows self in a chain of attributes; empty where it is none."""
    parts: list[str] = []
    while isinstance(tree, ast.Attribute):
        parts.append(tree.attr)
        tree = tree.value
    return ".".join(reversed(parts)) if isinstance(tree, ast.Name) and tree.id == "self" else ""


def _found(module: nn.Module, path: str) -> nn.Parameter | None:
    """The parameter at the end of a chain of attributes."""
    value: object = module
    for name in path.split("."):
        value = getattr(value, name, None) if isinstance(value, nn.Module) else None
    return value if isinstance(value, nn.Parameter) else None
