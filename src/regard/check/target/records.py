"""Arguments that are several tensors in one: records of named fields, and lists with one for each layer."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from typing import Any

from torch import nn

from regard.check.target.classes import classes_beside
from regard.check.target.looked_up import part_of, readers

__all__ = ["is_record", "layers_beside"]


def is_record(target: Any, annotation: str) -> bool:
    """Whether an annotation is a dataclass or a NamedTuple of the same file that holds tensors alone.

    Args:
        target: what is called.
        annotation: of the argument, as written or as Python shows it.
    """
    name = re.sub(r"<class '(.*)'>", r"\1", annotation).rpartition(".")[2]
    for kind in classes_beside(target if inspect.isroutine(target) else type(target)):
        if kind.__name__ == name and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
            told = [str(each) for each in getattr(kind, "__annotations__", {}).values()]
            return bool(told) and all("Tensor" in each for each in told)
    return False


def layers_beside(target: Any, name: str) -> int:
    """How many layers a loop goes through beside an argument: it holds a tensor for each; 0 without such a loop.

    As by for layer, memory in zip(self.layers, memories).
    """
    reader = next(readers(target, name), None)
    if reader is None:
        return 0
    module, tree, names = reader
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Name) or each.func.id != "zip":
            continue
        given = {one.id for one in each.args if isinstance(one, ast.Name)}
        lists = [part_of(module, one) for one in each.args if isinstance(one, ast.Attribute)]
        lists = [one for one in lists if isinstance(one, nn.ModuleList)]
        if given & names and lists:
            return len(lists[0])
    return 0
