"""A class of positions in the file of a model whose tokens have none, and that no line of it uses."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Collection, Iterator

from torch import nn

from regard.check.properties.attributes import tree_of
from regard.check.properties.code import documentation_of_file
from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation

__all__ = ["WITHOUT", "unused_position_findings"]

_OF_POSITIONS = re.compile(r"posit|pos_?(?:emb|enc)", re.I)
"""In the name of a class whose modules give tokens their positions."""
WITHOUT = re.compile(r"\b(?:no|without|not?\b[^.\n]{0,40}\bany)\s+(?:explicit\s+)?posit|\bNoPE\b|permutation", re.I)
"""What is said of a model whose tokens have no positions on purpose."""


def unused_position_findings(invocation: Invocation, found: Collection[Finding]) -> Iterator[Finding]:
    """Tokens that a model looks up by their ids and that have no positions, where its file has a class for these.

    Args:
        invocation: the call.
        found: what is known of its steps.
    """
    target = invocation.target
    of_positions = [each for each in found if each.step == "positions"]
    is_of_ids = [each.role for each in invocation.streams] == ["ids"]
    if not isinstance(target, nn.Module) or not is_of_ids or not of_positions:
        return
    if any(each.kind != "absent" for each in of_positions):
        return
    said = "\n".join((documentation_of_file(target), documentation_of(target), *comments_of(target)))
    if WITHOUT.search(said):
        return
    own = {type(each).__name__ for each in target.modules()}
    for name in _unused_classes(type(target)):
        if name in own:
            continue
        message = f"{name} stands in its file, and no line uses it: tokens have no positions"
        yield Finding("violation", "positions-without-effect", "positions", message)
        return


def _unused_classes(kind: type) -> Iterator[str]:
    """The modules that give positions, which a file defines and nothing in it names again."""
    file = sys.modules.get(kind.__module__)
    tree = tree_of(file) if file is not None and kind.__module__.partition(".")[0] != "torch" else None
    if tree is None or hasattr(file, "__all__"):
        return
    for part in tree.body:
        made = getattr(file, part.name, None) if isinstance(part, ast.ClassDef) else None
        if not isinstance(part, ast.ClassDef) or not _OF_POSITIONS.search(part.name):
            continue
        inside = {id(each) for each in ast.walk(part)}
        named = (each for each in ast.walk(tree) if id(each) not in inside)
        is_used = any(
            part.name in (getattr(each, "id", ""), getattr(each, "attr", ""))
            or (isinstance(each, ast.Constant) and each.value == part.name)
            for each in named
        )
        if inspect.isclass(made) and issubclass(made, nn.Module) and not is_used:
            yield part.name
