"""Ids that are made of several arguments: of a question, and of whether it was answered."""

from __future__ import annotations

import ast
from functools import cache

from regard.check.target.argument import tree_of

__all__ = ["is_part_of_ids"]


@cache
def is_part_of_ids(source: str, name: str, *, is_times: bool = False) -> bool:
    """Whether an embedding looks up a sum with it, as x = q + n * r, of a question and whether it was answered.

    Args:
        source: the text of the code.
        name: of an argument, as q.
        is_times: whether it is multiplied in it, as r: the number of its kind.
    """
    if "Embedding" not in source:
        return False
    tree = tree_of(source)
    attributes, sums = set[str](), dict[str, set[str]]()
    for each in ast.walk(tree):
        if not isinstance(each, ast.Assign) or len(each.targets) != 1:
            continue
        several, values = each.targets[0], each.value
        is_pair = isinstance(several, ast.Tuple) and isinstance(values, ast.Tuple)
        pairs = zip(several.elts, values.elts, strict=False) if is_pair else [(several, values)]  # type: ignore[attr-defined]
        for to, value in pairs:
            if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "Embedding":
                attributes.add(ast.unparse(to))
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                sides = [one for one in (value.left, value.right) if isinstance(one, ast.BinOp) == is_times]
                sums[ast.unparse(to)] = {
                    one.id for side in sides for one in ast.walk(side) if isinstance(one, ast.Name)
                }
    found = (each for each in ast.walk(tree) if isinstance(each, ast.Call) and len(each.args) == 1)
    return any(
        name in sums.get(ast.unparse(each.args[0]), ()) and ast.unparse(each.func) in attributes for each in found
    )
