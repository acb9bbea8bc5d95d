"""What the subclasses of a class read, in the file that both stand in."""

from __future__ import annotations

import ast
import inspect

from torch import nn

__all__ = ["is_read_by_a_subclass"]


def is_read_by_a_subclass(kind: type[nn.Module], name: str) -> bool:
    """Whether a class of the same file that is derived from a class reads an attribute which that one itself does not.

    A base class may store what only those that are derived from it need, as a causal mask.

    Args:
        kind: the class.
        name: of the attribute.
    """
    file = inspect.getmodule(kind)
    try:
        tree = ast.parse(inspect.getsource(file)) if file is not None else None
    except (OSError, TypeError, SyntaxError):
        return False
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)} if tree is not None else {}
    if kind.__name__ not in classes or _reads(classes[kind.__name__], name):
        return False
    derived = {kind.__name__}
    for each in classes.values():  # in the order of the file: a base stands before what is derived from it
        if derived & {base.id for base in each.bases if isinstance(base, ast.Name)}:
            derived.add(each.name)
    return any(_reads(classes[each], name) for each in derived)


def _reads(tree: ast.ClassDef, name: str) -> bool:
    return any(
        isinstance(each, ast.Attribute) and each.attr == name and isinstance(each.ctx, ast.Load)
        for each in ast.walk(tree)
    )
