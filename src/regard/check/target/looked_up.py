"""In which tables of vectors an argument is looked up, also by a part that it is handed on to."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from torch import nn

from regard.check.target.argument import text_of, tree_of
from regard.check.target.documented_shapes import documented_letters
from regard.check.target.preparation import modules_in

__all__ = [
    "are_compared_alone",
    "are_joined",
    "base_of",
    "fields_of",
    "function_of",
    "gets_an_axis",
    "handed_on",
    "is_paired",
    "part_of",
    "readers",
    "table_of",
]

MAX_DEPTH = 4
"""Of calls in calls."""
_VIEWS = re.compile(
    "clone|contiguous|cpu|cuda|detach|expand|flatten|int|long|permute|reshape|squeeze|t|to|transpose|type|unsqueeze|view"
)
"""Methods that return the same ids, in other axes or of another type."""


def table_of(target: Any, name: str) -> nn.Embedding | None:
    """The table of vectors that the ids of an argument are looked up in; None where the code looks up nothing by it.

    Args:
        target: what is called.
        name: of the argument, as words in self.step(words[:, t]), where step calls self.embedding with them.
    """
    for module, tree, names in readers(target, name):
        for called, _ in handed_on(tree, names):
            if isinstance(part := part_of(module, called), nn.Embedding):
                return part
    return None


def fields_of(target: Any, name: str) -> tuple[int, str]:
    """How many ids each token of an argument has, as each transaction of rows[..., field] has one of each field.

    Args:
        target: what is called.
        name: of the argument.

    Returns:
        As many as there are tables in the list of which each looks up one of them, or two where the vectors of one
        table are summed over an axis behind that of the tokens (GPT-1: a word and its place); and the order of the
        axes, if that is written; 0 where the code has nothing like it, or does not say that there are samples and
        tokens besides.
    """
    for module, tree, names in readers(target, name):
        if _sums_vectors(module, tree, names):
            return 2, ""
        taken = [each for each in ast.walk(tree) if isinstance(each, ast.Subscript) and base_of(each.value) in names]
        places = [each.slice.elts for each in taken if isinstance(each.slice, ast.Tuple)]
        is_of_last = any(isinstance(each[-1], ast.Name) for each in places)
        is_deep = any(len(each) == len("btd") and isinstance(each[0], ast.Slice) for each in places)
        kind: Any = type(module)
        documented = {documented_letters(text_of(kind), each) for each in names}
        lists = [each for each in module.children() if isinstance(each, nn.ModuleList) and len(each) > 1]
        lists = [each for each in lists if all(isinstance(one, nn.Embedding) for one in each)]
        if is_of_last and (is_deep or "btd" in documented) and len(lists) == 1:
            return len(lists[0]), "btd" if "btd" in documented else ""
    return 0, ""


def _sums_vectors(module: nn.Module, tree: ast.AST, names: set[str]) -> bool:
    """Whether the vectors that ids are looked up in one table for are summed over the third axis of the ids."""
    looked_up, others = set[str](), set[str]()

    def is_looked_up(value: ast.AST) -> bool:
        """Whether it is the vectors of the ids, also after a layer that keeps them apart."""
        if isinstance(value, ast.Name):
            return value.id in looked_up - others
        if not isinstance(value, ast.Call) or len(value.args) != 1:
            return False
        part = part_of(module, value.func)
        if isinstance(part, nn.Embedding):
            return base_of(value.args[0]) in names
        return isinstance(part, nn.Dropout | nn.LayerNorm | nn.Identity) and is_looked_up(value.args[0])

    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            is_of_ids = base_of(each.value) in names
            (looked_up if is_looked_up(each.value) else set() if is_of_ids else others).add(each.targets[0].id)
    for each in ast.walk(tree):
        if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute) or each.func.attr != "sum":
            continue
        is_third = re.search(r"(?:\.sum\(|, )(?:dim=|axis=)?2\)$", ast.unparse(each)) is not None
        if is_third and any(map(is_looked_up, [each.func.value, *each.args[:1]])):
            return True
    return False


def gets_an_axis(target: Any, name: str) -> bool:
    """Whether the code, or a part that it hands an argument on to, gives it an axis behind all others.

    Args:
        target: what is called.
        name: of the argument, as times in times.unsqueeze(-1) or times[..., None].
    """
    behind = re.compile(r"unsqueeze\((?:dim=)?-1\)|\[\.\.\., None\]")
    for _, tree, names in readers(target, name):
        for each in ast.walk(tree):
            value = each.value if isinstance(each, ast.Subscript | ast.Attribute) else None
            text = ast.unparse(each) if isinstance(each, ast.Subscript | ast.Call) else ""
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
                value = each.func.value
            if isinstance(value, ast.Name) and value.id in names and behind.search(text):
                return True
    return False


def are_joined(target: Any, one: str, other: str) -> bool:
    """Whether the code, or a part that it hands both arguments on to, joins one with the other, as by torch.cat.

    Args:
        target: what is called.
        one: the name of an argument.
        other: that of another one.
    """
    names_of_other = {id(module): names for module, _, names in readers(target, other)}
    for module, tree, names in readers(target, one):
        for each in ast.walk(tree):
            if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] in ("cat", "concat"):
                parts = {base_of(part) for given in each.args[:1] for part in getattr(given, "elts", [])}
                if parts & names and parts & names_of_other.get(id(module), set()):
                    return True
    return False


def are_compared_alone(target: Any, name: str) -> bool:
    """Whether nothing is done with an argument but that it is compared with 0, or with the id of padding.

    Args:
        target: what is called.
        name: of the argument, as tokens in (tokens == 0), also after tokens = tokens.expand(heads, -1, -1).
    """
    call = _call_of(target)
    return call is not None and _are_compared_alone(text_of(call), name)


@cache
def _are_compared_alone(source: str, name: str) -> bool:
    """The same of the text of a call."""
    if "==" not in source and "!=" not in source:
        return False
    tree = tree_of(source)
    names = _names_of(tree, name)
    reads = {id(each) for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in names}
    reads -= {id(each) for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    asked = {
        id(one)
        for each in ast.walk(tree)
        if isinstance(each, ast.If | ast.IfExp | ast.While | ast.Assert)
        for one in ast.walk(each.test)
    }  # a single number
    compared, viewed = set[int](), set[int]()
    for each in ast.walk(tree):
        if id(each) in asked:
            continue
        if (
            isinstance(each, ast.Compare)
            and base_of(each.left) in names
            and isinstance(each.ops[0], ast.Eq | ast.NotEq)
        ):
            other = each.comparators[0]
            if (isinstance(other, ast.Constant) and other.value == 0) or "pad" in ast.unparse(other).lower():
                compared |= {id(one) for one in ast.walk(each.left)}
        elif isinstance(each, ast.Assign) and base_of(each.value) in names:
            viewed |= {id(one) for one in ast.walk(each.value)}
    return bool(reads & compared) and reads <= compared | viewed


def is_paired(target: Any, name: str) -> bool:
    """Whether the code pairs the elements of an argument, as in itertools.combinations(inputs, 2): it is a list.

    One tensor in its place would be taken apart into its samples.

    Args:
        target: what is called.
        name: of the argument.
    """
    return any(
        isinstance(each, ast.Call)
        and re.search(r"(?:^|\.)combinations$", ast.unparse(each.func)) is not None
        and bool(each.args)
        and isinstance(each.args[0], ast.Name)
        and each.args[0].id in names
        for _, tree, names in readers(target, name)
        for each in ast.walk(tree)
    )


def _call_of(target: Any) -> Callable[..., Any] | None:
    """The function that a call of a module runs, or of a method of one; None of anything else."""
    if isinstance(target, nn.Module):
        return type(target).forward
    has_modules = next(iter(modules_in(target)), None) is not None
    return getattr(target, "__func__", None) if has_modules else None


def readers(target: Any, name: str) -> Iterator[tuple[nn.Module, ast.AST, set[str]]]:
    """Each module whose code takes an argument, or is handed it on; the code, and the names that it has in there."""
    module, call = next(iter(modules_in(target)), None), _call_of(target)
    if module is not None and call is not None:
        yield from _inside(module, call, name, MAX_DEPTH)


def _inside(
    module: nn.Module, call: Callable[..., Any], name: str, depth: int
) -> Iterator[tuple[nn.Module, ast.AST, set[str]]]:
    """The same, of a function of a module."""
    tree = tree_of(text_of(call))
    names = _names_of(tree, name)
    yield module, tree, names
    for called, given in handed_on(tree, names) if depth else ():
        part = part_of(module, called)
        function = function_of(part)
        if function is None:
            continue
        owner = part if isinstance(part, nn.Module) else module
        if taken := _parameter(function, given):
            yield from _inside(owner, function, taken, depth - 1)


def function_of(part: Any) -> Callable[..., Any] | None:
    """The function of a part that is called with arguments, a method or a module; None of one of PyTorch's."""
    function = type(part).forward if isinstance(part, nn.Module) else getattr(part, "__func__", None)
    return None if getattr(function, "__module__", "torch.").startswith("torch.") else function


def _names_of(tree: ast.AST, name: str) -> set[str]:
    """The names of the ids of a name, and of what only views them."""
    names = {name}
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            names |= {each.targets[0].id} if base_of(each.value) in names else set()
    return names


def handed_on(tree: ast.AST, names: set[str]) -> Iterator[tuple[ast.expr, int | str]]:
    """What is called with ids, or with some of them, and the place or the keyword that they have there."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            given: list[tuple[int | str, ast.expr]] = [*enumerate(each.args)]
            given += [(one.arg, one.value) for one in each.keywords if one.arg is not None]
            yield from ((each.func, place) for place, value in given if base_of(value) in names)


def base_of(value: ast.expr) -> str:
    """The name of what an expression only views, as words in words[:, t].long(); empty of any other."""
    while not isinstance(value, ast.Name):
        if isinstance(value, ast.Subscript):
            value = value.value
        elif (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _VIEWS.fullmatch(value.func.attr)
        ):
            value = value.func.value
        else:
            return ""
    return value.id


def part_of(module: nn.Module, called: ast.expr) -> Any:
    """What an expression as self.encoder.embedding names, of a sequence of layers the first; None of any other."""
    found: Any = None
    if isinstance(called, ast.Name):
        found = module if called.id == "self" else None
    elif isinstance(called, ast.Attribute):
        found = getattr(part_of(module, called.value), called.attr, None)
    return found[0] if isinstance(found, nn.Sequential) and len(found) else found


def _parameter(function: Callable[..., Any], given: int | str) -> str:
    """The name of the parameter of a method that takes what is given at a place, or by a keyword; empty without one."""
    names = [each.name for each in inspect.signature(function).parameters.values() if each.kind != each.VAR_POSITIONAL]
    if isinstance(given, str):
        return given if given in names else ""
    return names[given + 1] if given + 1 < len(names) else ""
