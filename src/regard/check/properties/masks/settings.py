"""Masks without effect that are explained: by a setting, which chose another mask or none, or by the documentation."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from torch import nn

from regard.check.properties.finding import Finding
from regard.check.properties.unused_arguments import is_said_unused
from regard.check.target import Invocation
from regard.check.target.argument import asks_for_none, source_of, tree_of
from regard.check.target.documented_shapes import is_of_samples
from regard.check.target.names import call_meaning

__all__ = [
    "EXPLAINED",
    "NOT_OF_KEYS",
    "OTHER_SEQUENCE",
    "is_counted",
    "is_of_another_setting",
    "switched_off",
]

OF_ATTENTION = re.compile("att|pad|key|src|tgt|causal", re.I)
"""In names of masks that are of attention, wherever the code reads them."""
OTHER_SEQUENCE = re.compile("enc|memory|mem_|context|cross|^inputs_|^prepend_")
"""Names of masks of a sequence that need not be there."""
_OF_A_NUMBER = re.compile(r"self\.(?P<attribute>\w+)(?: (?:>|!=) 0)?")
_OF_ALL_KINDS = frozenset({"mask", "masks", "m"})
"""Names of masks that say of nothing that they are of it alone."""
NOT_OF_KEYS = re.compile("^(?:q|query|queries)_|prefix")
"""Names of masks that hide no key: of queries that are padding, whose outputs are of no use, and of a prefix."""


def switched_off(invocation: Invocation, name: str) -> Finding | None:
    """That a mask is not read, as an argument of the constructor that is named after masks is False; None elsewhere.

    Any other setting says nothing of masks: code that reads a mask of padding where it is causal alone drops it.

    Args:
        invocation: the call.
        name: of its mask.
    """
    if not isinstance(invocation.target, nn.Module):
        return None
    switches = _switches_before(invocation.target, name)
    if not switches:
        return None
    switch = ", ".join(sorted(switches))
    return Finding("open", "mask-switch", "mask", f"{name} is not read, as {switch}=False says: not exercised")


def _switches_before(module: nn.Module, name: str) -> set[str]:
    """The settings of a module that are False, and without which nothing reads an argument; empty where something does.

    A module that hands it on is asked about the part that takes it, as a layer about its inner attention.

    Args:
        module: the module.
        name: of the argument of its forward.
    """
    if (tree := _forward_of(module)) is None:
        return set()
    told = set(inspect.signature(type(module).__init__).parameters)
    switches = {each for each in told if "mask" in each.lower() and getattr(module, each, None) is False}
    behind = {id(each) for node in ast.walk(tree) for each in _names_read(_behind(node, switches))}
    reads = _reads_of(name, tree)
    found = switches if reads & behind else set()
    for part, parameter, read in _handed_on(module, name, tree):
        if others := _switches_before(part, parameter):
            behind.add(read)
            found = found | others
    return found if reads and reads <= behind else set()


def _handed_on(module: nn.Module, name: str, tree: ast.AST) -> Iterator[tuple[nn.Module, str, int]]:
    """The parts that an argument is handed on to as it is, what it is called there, and the number of the node."""
    for each in ast.walk(tree):
        if not (isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)):
            continue
        of_self = isinstance(each.func.value, ast.Name) and each.func.value.id == "self"
        part = getattr(module, each.func.attr, None) if of_self else None
        if not isinstance(part, nn.Module) or part is module:
            continue
        names = [*inspect.signature(type(part).forward).parameters][1:]
        placed = [(parameter, value) for parameter, value in zip(names, each.args, strict=False)]
        placed += [(one.arg, one.value) for one in each.keywords if one.arg is not None]
        for parameter, value in placed:
            if isinstance(value, ast.Name) and value.id == name:
                yield part, parameter, id(value)


def not_chosen(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is read on one side of a question alone, and another mask on the other; else None.

    The question is one of the module's settings, as in `mask = local if self.kind == "local" else whole`.

    Args:
        invocation: the call.
        name: of its mask.
    """
    if (tree := _forward_of(invocation.target)) is None:
        return None
    reads = _reads_of(name, tree)
    for each in ast.walk(tree):
        if not isinstance(each, ast.If | ast.IfExp) or not _is_of_a_setting(each.test):
            continue
        sides = [side if isinstance(side, list) else [side] for side in (each.body, each.orelse)]
        for mine, other in (sides, sides[::-1]):
            others = {one.id for one in _names_read(other)} & set(invocation.masks) - {name}
            if others and reads and reads <= {id(one) for one in _names_read(mine)}:
                asked = ast.unparse(each.test)
                message = f"{name} is not read: {asked} chooses {', '.join(sorted(others))}; {name} was not exercised"
                return Finding("open", "mask-open", "mask", message)
    return None


def put_for_another(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is put in the place of another one where a setting says so, and is read nowhere else.

    As in `if self.is_local and local_mask is not None: mask = local_mask`.

    Args:
        invocation: the call.
        name: of its mask.
    """
    if (tree := _forward_of(invocation.target)) is None:
        return None
    reads, others = _reads_of(name, tree), {*invocation.masks} - {name}
    for each in ast.walk(tree):
        if not isinstance(each, ast.If) or each.orelse or not _has_a_setting(each.test, invocation.arguments):
            continue
        put = {
            target.id
            for one in each.body
            if isinstance(one, ast.Assign) and isinstance(one.value, ast.Name) and one.value.id == name
            for target in one.targets
            if isinstance(target, ast.Name) and target.id in others
        }
        if put and reads <= {id(one) for one in _names_read([each.test, *each.body])}:
            message = f"{name} stands in the place of {min(put)} where {ast.unparse(each.test)}; it was not exercised"
            return Finding("open", "mask-open", "mask", message)
    return None


def is_of_another_setting(invocation: Invocation, name: str) -> bool:
    """Whether an argument is read only where a setting has a value that is not the module's, as `self.kind == "t5"`.

    Or only where a part is there that the module has not, as `if self.cross is not None`.

    Args:
        invocation: the call.
        name: of the argument.
    """
    return bool(_answered_no(invocation, name, _has_another_value))


def of_a_number_of_none(invocation: Invocation, name: str) -> Finding | None:
    """That a mask is read only where a number of the module is not 0, as `self.shift_size > 0`, and it is 0; else None.

    Args:
        invocation: the call.
        name: of its mask.
    """
    asked = _answered_no(invocation, name, _is_of_nothing)
    if not asked:
        return None
    message = f"{name} is read where {asked[0]} alone, and it is 0: not exercised"
    return Finding("open", "mask-open", "mask", message)


def of_another_kind(invocation: Invocation, name: str) -> Finding | None:
    """That a mask that is named for something is read only where the module is of a kind that it is not; else None.

    As `relation_mask` where `self.relations == "added"`. One that hides padding, or whatever it is told, is needed in
    every kind.

    Args:
        invocation: the call.
        name: of its mask.
    """
    if name in _OF_ALL_KINDS or OF_ATTENTION.search(name):
        return None
    asked = _answered_no(invocation, name, _is_of_another_kind)
    if not asked:
        return None
    message = f"{name} is read where {asked[0]} alone: not exercised"
    return Finding("open", "mask-open", "mask", message)


def _is_of_another_kind(test: ast.expr, target: Any) -> bool:
    """Whether an attribute of a module is compared with a text that it does not equal."""
    text = test.comparators[-1] if isinstance(test, ast.Compare) else None
    return isinstance(text, ast.Constant) and isinstance(text.value, str) and _has_another_value(test, target)


def _answered_no(invocation: Invocation, name: str, is_no: Callable[[ast.expr, Any], bool]) -> list[str]:
    """The questions that a module answers no, and below which alone an argument is read; none where it is elsewhere.

    Args:
        invocation: the call.
        name: of the argument.
        is_no: whether a question, asked of the module, is one of these.
    """
    if (tree := _forward_of(invocation.target)) is None:
        return []
    asked = [
        (
            ast.unparse(each.test),
            {id(one) for one in _names_read([each.test, *(each.body if isinstance(each, ast.If) else [each.body])])},
        )
        for each in ast.walk(tree)
        if isinstance(each, ast.If | ast.IfExp) and any(is_no(one, invocation.target) for one in _all_asked(each.test))
    ]
    reads = _reads_of(name, tree)
    is_below = bool(reads) and reads <= {read for _, below in asked for read in below}
    return [test for test, below in asked if below & reads] if is_below else []


def _all_asked(test: ast.expr) -> list[ast.expr]:
    """The questions of which each has to be answered yes."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _is_of_nothing(test: ast.expr, target: Any) -> bool:
    """Whether it asks whether a number of a module is not 0, and that is 0."""
    asked = _OF_A_NUMBER.fullmatch(ast.unparse(test))
    number = None if asked is None else getattr(target, asked["attribute"], None)
    return type(number) is int and number == 0


def _has_another_value(test: ast.expr, target: Any) -> bool:
    """Whether an attribute of a module is compared with a constant that it does not equal, or asked for and is none."""
    side = test.left if isinstance(test, ast.Compare) and _asks_for_something(test) else test
    if isinstance(side, ast.Attribute) and isinstance(side.value, ast.Name) and side.value.id == "self":
        value = getattr(target, side.attr, True)
        return value is None or (value is False and side is test)
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    side, constant = test.left, test.comparators[0]
    if not (isinstance(side, ast.Attribute) and isinstance(side.value, ast.Name) and side.value.id == "self"):
        return False
    return isinstance(constant, ast.Constant) and getattr(target, side.attr, constant.value) != constant.value


def _asks_for_something(test: ast.Compare) -> bool:
    """Whether it asks whether something is not None."""
    return (
        len(test.ops) == 1
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )


def documented_unused(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is one that the documentation says is not used; None of others."""
    if not is_said_unused(invocation.target, name):
        return None
    return Finding("note", "mask-open", "mask", f"{name} is not used, as its documentation says")


def of_the_loss(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is read only where targets are given: it is of the loss; None of others.

    Args:
        invocation: the call.
        name: of its mask; one whose name says that it is of attention is none of the loss.
    """
    if OF_ATTENTION.search(name) or (tree := _forward_of(invocation.target)) is None:
        return None
    targets = {each.id for each in _names_read([tree]) if call_meaning(each.id) == "targets"}
    given = {id(one) for each in ast.walk(tree) for one in _names_read(_where_given(each, targets))}
    reads = _reads_of(name, tree)
    if not reads or not reads <= given:
        return None
    message = f"{name} is read only where {', '.join(sorted(targets))} is given: it is of the loss, and hides no key"
    return Finding("note", "mask-open", "mask", message)


def of_training(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is read only in training, each time to multiply something: it drops parts; else None.

    As of dropout that drops the same parts of a memory in all steps (MAC, arXiv:1803.03067).

    Args:
        invocation: the call.
        name: of its mask; one whose name says that it is of attention drops nothing.
    """
    tree = None if OF_ATTENTION.search(name) else _forward_of(invocation.target)
    if tree is None or not _answered_no(invocation, name, lambda test, _: ast.unparse(test) == "self.training"):
        return None
    products = [each for each in ast.walk(tree) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult)]
    if not _reads_of(name, tree) <= {id(side) for each in products for side in (each.left, each.right)}:
        return None
    message = f"{name} is read only in training, where it multiplies something, as dropout does: it hides no key"
    return Finding("note", "mask-open", "mask", message)


def of_whole_samples(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect is written to have one mark of each sample: it tells no key; None of others.

    Such as of the videos of a batch whose frames see nothing but themselves.
    """
    source = source_of(invocation.target)
    pattern = rf"""rearrange\(\s*{re.escape(name)}\s*,\s*["']\s*(?:b|batch)\s*->"""
    if not is_of_samples(source, name) and re.search(pattern, source) is None:
        return None
    message = f"{name} has one mark of each sample: what it changes in the weights was not exercised"
    return Finding("open", "mask-open", "mask", message)


def said_by_boundaries(invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect stands beside the boundaries of packed sequences, which hide keys; None of others."""
    if not invocation.boundaries:
        return None
    message = f"{name} is not used: {invocation.boundaries[0]} says which tokens attend to one another"
    return Finding("note", "mask-open", "mask", message)


def _forward_of(target: Any) -> ast.AST | None:
    """The code of a module's forward; None where there is none."""
    return tree_of(source_of(type(target).forward)) if isinstance(target, nn.Module) else None


def _reads_of(name: str, tree: ast.AST) -> set[int]:
    """The places where an argument is read, each by the number of its node: until its name is given something else."""
    call = next((each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)), None)
    body: list[ast.AST] = [tree] if call is None else [*call.body]
    given_anew = (number for number, each in enumerate(body) if isinstance(each, ast.Assign) and _is_set(name, each))
    read = body[: next(given_anew, len(body)) + 1]
    return {id(each) for each in _names_read(read) if each.id == name}


def _is_set(name: str, assigned: ast.Assign) -> bool:
    """Whether a line gives something to a name."""
    return any(isinstance(each, ast.Name) and each.id == name for each in assigned.targets)


def _names_read(parts: Iterable[ast.AST]) -> Iterator[ast.Name]:
    for part in parts:
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                yield each


def _behind(node: Any, switches: set[str]) -> list[ast.AST]:
    """What is computed only where a switch is on."""
    if isinstance(node, ast.If) and _asks(node.test, switches):
        return [*node.body, node.test]
    if isinstance(node, ast.IfExp) and _asks(node.test, switches):
        return [node.body, node.test]
    return []


def _where_given(node: Any, names: set[str]) -> list[ast.AST]:
    """What is computed only where one of some arguments is not None, or after a return where it is."""
    if isinstance(node, ast.If) and asks_for_none(node.test, names, ast.IsNot):
        return list(node.body)
    if isinstance(node, ast.If) and asks_for_none(node.test, names, ast.Is):
        return list(node.orelse)
    body = getattr(node, "body", [])
    for number, each in enumerate(body if isinstance(body, list) else []):
        ends = isinstance(each, ast.If) and isinstance(each.body[-1], ast.Return)
        if ends and asks_for_none(each.test, names, ast.Is):
            return list(body[number + 1 :])
    return []


def _asks(test: ast.expr, switches: set[str]) -> bool:
    """Whether a condition is false where the switch is off."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_asks(each, switches) for each in test.values)
    return (
        isinstance(test, ast.Attribute)
        and test.attr in switches
        and isinstance(test.value, ast.Name)
        and test.value.id == "self"
    )


def _is_of_a_setting(test: ast.expr) -> bool:
    """Whether a condition reads nothing but attributes of the module."""
    names = {each.id for each in _names_read([test])}
    return names == {"self"} and not any(isinstance(each, ast.Call) for each in ast.walk(test))


def _has_a_setting(test: ast.expr, arguments: Collection[str]) -> bool:
    """Whether a condition asks, beside other things, for an attribute of the module, and there for no argument."""
    names = [{each.id for each in _names_read([one])} for one in _all_asked(test)]
    return any("self" in each and not each & {*arguments} for each in names)


EXPLAINED = (
    not_chosen,
    put_for_another,
    of_a_number_of_none,
    of_another_kind,
    documented_unused,
    said_by_boundaries,
    of_the_loss,
    of_training,
    of_whole_samples,
)
"""What may say why a mask has no effect."""


def is_counted(invocation: Invocation, name: str) -> bool:
    """Whether the code asks a mask how many keys it blocks or leaves: these stand together, at one end."""
    name = re.escape(name)
    counted = rf"\b{name}(?:\.\w+\([^()]*\))*\.sum\(|\bsum\(\s*~?{name}\b"
    return re.search(counted, source_of(invocation.target)) is not None
