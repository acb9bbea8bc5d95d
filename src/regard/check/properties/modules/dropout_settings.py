"""The share of dropout that a constructor is told: it is dropped in training, by all parts of the module."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.attributes import is_unread
from regard.check.properties.documentation import documents_a_use
from regard.check.properties.finding import Finding
from regard.check.properties.modules.dropout_modes import SHARE, SHARE_NAME, is_drawn
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes, parameters_of
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied
from regard.check.target.sizes import DISTINCT_SIZES
from regard.check.target.subclasses import is_read_by_a_subclass

__all__ = ["dropout_setting_findings"]

_KEPT = re.compile(r"keep|kept|retain|surviv", re.I)
_DROPOUT = nn.modules.dropout._DropoutNd


@dataclass(frozen=True)
class _Constructor:
    """Of a module: its text, and the parameters that say how much is dropped."""

    path: str
    module: nn.Module
    tree: ast.FunctionDef
    lines: tuple[str, ...]
    first: int
    file: str
    shares: Mapping[str, inspect.Parameter]

    def location(self, node: ast.AST) -> CodeLocation:
        number = getattr(node, "lineno", 1) - 1
        return CodeLocation(self.file, self.first + number, self.lines[number].strip())

    def reads(self, name: str) -> int:
        """How many times a parameter is read, but for conditions: these say whether anything is dropped at all."""
        conditions = [each.test for each in ast.walk(self.tree) if isinstance(each, ast.If | ast.IfExp)]
        asked = {id(each) for condition in conditions for each in ast.walk(condition)}
        names = (each for each in ast.walk(self.tree) if isinstance(each, ast.Name) and id(each) not in asked)
        return sum(each.id == name and isinstance(each.ctx, ast.Load) for each in names)


def dropout_setting_findings(invocation: Invocation) -> Iterator[Finding]:
    """A share to be dropped that a part does not get, or that nothing drops.

    Args:
        invocation: a call of a module that is in eval().
    """
    if not isinstance(invocation.target, nn.Module):
        return
    for each in _constructors(invocation.target):
        try:
            found = _told_what_stays(each) or _not_handed_on(invocation, each) or _in_vain(invocation, each)
        except (Failed, RuntimeError):
            continue
        if found is not None:
            yield found
            return


def _constructors(target: nn.Module) -> Iterator[_Constructor]:
    """The constructors of all modules that take a share to be dropped, one of each class."""
    seen = set[type]()
    for path, module in target.named_modules():
        kind = type(module)
        begun = vars(kind).get("__init__")
        if kind in seen or own_classes(kind)[:1] != [kind] or not inspect.isfunction(begun):
            continue
        seen.add(kind)
        shares = {
            name: each for name, each in inspect.signature(begun).parameters.items() if SHARE_NAME.fullmatch(name)
        }
        if not shares:
            continue
        try:
            lines, first = inspect.getsourcelines(begun)
            (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        if isinstance(tree, ast.FunctionDef):
            yield _Constructor(path, module, tree, tuple(lines), first, begun.__code__.co_filename, shares)


def _told_what_stays(made: _Constructor) -> Finding | None:
    """A dropout that is made of 1 minus the share to be dropped, as TensorFlow's was told which share to keep.

    Nothing in the class speaks of a share that is kept.
    """
    for node in ast.walk(made.tree):
        if not isinstance(node, ast.Call) or "dropout" not in ast.unparse(node.func).lower():
            continue
        for given in (*node.args[:1], *(each.value for each in node.keywords if each.arg == "p")):
            if not isinstance(given, ast.BinOp) or not isinstance(given.op, ast.Sub):
                continue
            name, is_rest = ast.unparse(given.right), ast.unparse(given.left) in ("1", "1.0")
            if is_rest and name in made.shares and not _KEPT.search(source_of(type(made.module))):
                message = f"it drops 1 - {name}: what {name} says is the share that stays, and the rest is dropped"
                return Finding("violation", "dropout-handed-on", "call", message, made.location(node), made.path)
    return None


def _not_handed_on(invocation: Invocation, made: _Constructor) -> Finding | None:
    """A part that drops the share that its class has by default, where another one was asked for.

    The class takes one share, or one by the same name as the part, and hands it on to others, as the share that these
    drop says.
    """
    for node in ast.walk(made.tree):
        if not isinstance(node, ast.Call):
            continue
        kind = _class_of(node, made)
        left = _left_by_default(node, kind)
        if kind is None or left is None:
            continue
        name, share = left
        asked = name if name in made.shares else next(iter(made.shares))
        if (asked != name and len(made.shares) > 1) or not made.reads(asked):
            continue
        paths = [path for path, each in made.module.named_modules() if type(each) is kind]
        told = _shares_in(made.module, paths)
        default = made.shares[asked].default
        if len(told) != 1 or told & {share, default if isinstance(default, float | int) else DISTINCT_SIZES[0].dropout}:
            continue
        if not any(_shares_in(made.module.get_submodule(each)) == {share} for each in paths):
            continue
        prefix = f"{made.path}." if made.path else ""
        if not _drops(invocation, {f"{prefix}{each}" for each in paths}):
            continue
        message = (
            f"{asked} = {told.pop():g} is not handed on to {kind.__name__}, which drops {share:g} in training as its "
            f"default {name} says"
        )
        return Finding("violation", "dropout-handed-on", "call", message, made.location(node), made.path)
    return None


def _class_of(node: ast.Call, made: _Constructor) -> type | None:
    """The class that a call makes an object of, if it is a module of the user's."""
    names = vars(sys.modules.get(type(made.module).__module__, object))
    found = names.get(node.func.id) if isinstance(node.func, ast.Name) else None
    is_own = inspect.isclass(found) and issubclass(found, nn.Module) and not found.__module__.startswith("torch")
    return found if is_own else None


def _left_by_default(node: ast.Call, kind: type | None) -> tuple[str, float] | None:
    """The share of a constructor that a call says nothing of, and its default, if something is dropped by that."""
    if kind is None or any(isinstance(each, ast.Starred) for each in node.args):
        return None
    parameters = [*parameters_of(kind).values()]
    told = {each.arg for each in node.keywords} | {each.name for each in parameters[: len(node.args)]}
    shares = [each for each in parameters if SHARE_NAME.fullmatch(each.name)]
    if None in told or any(each.name in told for each in shares) or len(shares) != 1:
        return None
    (share,) = shares
    return (share.name, share.default) if isinstance(share.default, float) and share.default > 0 else None


def _shares_in(module: nn.Module, without: list[str] | None = None) -> set[float]:
    """The shares that the parts of a module drop, but for those in some of them."""
    outside = [
        each
        for path, each in module.named_modules()
        if not any(path == one or path.startswith(f"{one}.") for one in without or ())
    ]
    found = {float(each.p) for each in outside if isinstance(each, _DROPOUT)}
    kept = ((name, value) for each in outside if not isinstance(each, _DROPOUT) for name, value in vars(each).items())
    return found | {value for name, value in kept if isinstance(value, float) and SHARE_NAME.fullmatch(name)}


def _drops(invocation: Invocation, paths: set[str], *, more: bool = False, unlike: nn.Module | None = None) -> bool:
    """Whether modules of some paths drop anything in training.

    Args:
        invocation: the call.
        paths: of the modules; nothing else drops.
        more: whether they drop more than they were told, or something if they were told to drop nothing.
        unlike: the dropout of theirs that alone is left, beside shares that are kept as numbers.
    """
    target = copied(invocation.target)
    own = {path for path, each in invocation.target.named_modules() if each is unlike}
    for path, each in target.named_modules():
        is_inside = any(not one or path == one or path.startswith(f"{one}.") for one in paths)
        if isinstance(each, _DROPOUT):
            stays = is_inside and (unlike is None or path in own)
            each.p = (SHARE if more else each.p) if stays else 0.0
            continue
        for name, value in [*vars(each).items()]:
            if isinstance(value, float) and SHARE_NAME.fullmatch(name):
                vars(each)[name] = (SHARE if more else value) if is_inside else 0.0
    return is_drawn(invocation, target, [True])


def _in_vain(invocation: Invocation, made: _Constructor) -> Finding | None:
    """A share that no line applies, nor a dropout that is made of it, where it is documented, or was asked for.

    A part is asked as well by the setting that a module takes for it alone.
    """
    kind = type(made.module)
    text = inspect.cleandoc(f"{kind.__doc__ or ''}\n\n{kind.__init__.__doc__ or ''}")
    for node in ast.walk(made.tree):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
            continue
        (kept,), name = node.targets, _share_in(node.value, made)
        if not (isinstance(kept, ast.Attribute) and name):
            continue
        part = getattr(made.module, kept.attr, None)
        is_number = isinstance(node.value, ast.Name)
        if not isinstance(part, float if is_number else _DROPOUT) or made.reads(name) > 1:
            continue
        if not is_unread(kind, kept.attr) or is_read_by_a_subclass(kind, kept.attr):
            continue
        default, share = made.shares[name].default, part.p if isinstance(part, _DROPOUT) else part
        usual = default if isinstance(default, float | int) else DISTINCT_SIZES[0].dropout
        is_asked_for = share not in (0.0, usual) or documents_a_use(text, name)
        if not is_asked_for and not (share and _is_handed_its_own(invocation, made, name)):
            continue
        if isinstance(part, _DROPOUT):
            is_applied = _drops(invocation, {made.path}, more=True, unlike=part)
            what = f"self.{kept.attr} is made of it, and nothing applies that"
        else:
            is_applied = _hangs_on(invocation, made.path, kept.attr)
            what = f"it is kept as self.{kept.attr}, and no line reads that"
        if not is_applied:
            message = f"{name} = {share:g} has no effect: {what}"
            return Finding("violation", "dropout-applied", "call", message, made.location(node), made.path)
    return None


def _is_handed_its_own(invocation: Invocation, made: _Constructor, name: str) -> bool:
    """Whether what an attention drops is a setting of its own, beside another, of a module that it is a part of.

    As where a block takes a share for the weights and one for the stream, and hands the first one to its attention. Of
    attentions without a softmax such settings are often left over: they have no weights of which some can be dropped.
    """
    if "softmax" not in source_of(type(made.module).forward).lower():
        return False
    outer = [
        each for each in _constructors(invocation.target) if len(each.shares) > 1 and each.module is not made.module
    ]
    for each in outer:
        if not any(part is made.module for part in each.module.modules()):
            continue
        for node in ast.walk(each.tree):
            if isinstance(node, ast.Call) and _class_of(node, each) is type(made.module):
                by_place = dict(zip(parameters_of(type(made.module)), node.args, strict=False))
                given = {**by_place, **{one.arg: one.value for one in node.keywords if one.arg}}.get(name)
                if isinstance(given, ast.Name) and given.id in each.shares and each.reads(given.id) == 1:
                    return True
    return False


def _share_in(value: ast.expr, made: _Constructor) -> str:
    """The share that is kept as it is, or that a call is given first of all shares; empty where there is none."""
    given = [value]
    if isinstance(value, ast.Call):
        given = [*value.args, *(each.value for each in value.keywords)]
    return next((each.id for each in given if isinstance(each, ast.Name) and each.id in made.shares), "")


def _hangs_on(invocation: Invocation, path: str, name: str) -> bool:
    """Whether anything is dropped in training by the share that a module keeps as a number, where no other one is."""
    target = copied(invocation.target)
    for each in target.modules():
        shares = ["p"] if isinstance(each, _DROPOUT) else [one for one in vars(each) if SHARE_NAME.fullmatch(one)]
        vars(each).update({one: 0.0 for one in shares if isinstance(vars(each)[one], float)})
    vars(target.get_submodule(path))[name] = SHARE
    return is_drawn(invocation, target, [True])
