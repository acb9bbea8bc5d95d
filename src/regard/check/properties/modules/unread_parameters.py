"""Parameters of the methods of a module that are handed over, and that the method does not read."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.code import code_of
from regard.check.properties.documentation import says_unused
from regard.check.properties.finding import Finding
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.modules.unread_sequences import is_said_to_be_meant
from regard.check.target import Invocation
from regard.check.target.argument import PLAIN
from regard.check.target.names import call_meaning

__all__ = ["unread_parameter_findings"]

ENOUGH = 4
"""Parameters that two methods of a class have in common, so that one may stand for the other."""
OF_TOKENS = frozenset({"x", "q", "k", "v", "context", "positions", "rope", "cos", "sin", "bias"})
"""What arguments mean that are read, or added, whichever way a method computes; a mask may be said by a flag."""
_ATTENDS = re.compile(r"softmax|scaled_dot_product_attention|multi_head_attention_forward")
_MASK = re.compile(r"(?:\w+_)?mask(?:_\w+)?")
_OF_VALUES = re.compile(r"(?P<of>\w+)_v(?P<rest>alue)?(?P<several>s?)")
_PRODUCT = re.compile(r"(?:^|\.)(?:bmm|matmul|einsum)$")
_READS_ALL = frozenset({"locals", "vars", "eval", "exec"})


def unread_parameter_findings(invocation: Invocation) -> Iterator[Finding]:
    """A mask that a method takes and does not read, while it calls an attention without one.

    Or vectors that are added to the values, where those for the keys stand in their place (Shaw et al. 2018, equation
    3); or whatever one of two methods with the same parameters does not read, as the other does.

    Args:
        invocation: a call of a module.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    owners = {type(each): each for each in target.modules() if not type(each).__module__.startswith("torch.")}
    for kind, owner in owners.items():
        methods = {name: each for name, each in vars(kind).items() if inspect.isfunction(each)}
        texts = {name: text for name, each in methods.items() if (text := _Text.of(each)) is not None}
        for name, text in texts.items():
            for mask in filter(_is_mask, text.unread()):
                called = text.call_without_mask(owner)
                if called is not None and not says_unused(inspect.getdoc(kind) or "", mask):
                    message = f"{name} takes {mask} and no line of it reads it: {called[0]} is called without a mask"
                    yield Finding("violation", "mask-argument", "mask", message, called[1])
                    return
            for unread in text.unread():
                twice = text.vectors_in_its_place(unread)
                if twice is not None:
                    message = f"{name} takes {unread} and no line of it reads it: {twice[0]} is multiplied twice"
                    yield Finding("violation", "vectors-of-values", "positions", message, twice[1])
                    return
            for unread in (each for each in text.unread() if call_meaning(each) in OF_TOKENS):
                others = [other for other, its in texts.items() if its is not text and text.is_read_by(its, unread)]
                if others:
                    message = f"{name} takes {unread} and no line of it reads it, as {others[0]} does"
                    yield Finding("violation", "arguments-read", "q", message, text.location)
                    return


class _Text:
    """A method as it is written."""

    def __init__(self, function: Callable[..., Any], tree: ast.FunctionDef, first: int, text: str) -> None:
        self.tree, self.first, self.lines = tree, first, text.splitlines()
        self.file = function.__code__.co_filename
        self.parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
        self.documentation = inspect.cleandoc(function.__doc__ or "")
        self.is_meant = is_said_to_be_meant(text)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Text | None:
        """None of one whose text is not known, or does nothing."""
        try:
            lines, first = inspect.getsourcelines(function)
            text = textwrap.dedent("".join(lines))
            tree = ast.parse(text).body[0]
        except (OSError, TypeError, SyntaxError):
            return None
        return cls(function, tree, first, text) if isinstance(tree, ast.FunctionDef) else None

    @property
    def location(self) -> CodeLocation:
        """Its first line."""
        return self._line(self.tree.lineno)

    def _line(self, number: int) -> CodeLocation:
        return CodeLocation(self.file, self.first + number - 1, self.lines[number - 1].strip())

    def unread(self) -> list[str]:
        """The parameters that no line of it names; none where it passes on all of its names, or says that is meant."""
        named = {each.id for each in ast.walk(self.tree) if isinstance(each, ast.Name)}
        calls = any(isinstance(each, ast.Call) for each in ast.walk(self.tree))
        if named & _READS_ALL or not calls or self.is_meant:
            return []
        return [
            name
            for number, (name, each) in enumerate(self.parameters.items())
            if number and name not in named and not name.startswith("_") and each.kind is each.POSITIONAL_OR_KEYWORD
            if not says_unused(self.documentation, name) and not isinstance(each.default, bool | int | float | str)
            if getattr(each.annotation, "__name__", str(each.annotation)) not in PLAIN
        ]

    def is_read_by(self, other: _Text, name: str) -> bool:
        """Whether a method with the same parameters, and enough of them, reads one that this method does not."""
        mine = list(self.parameters)[1:]
        return len(mine) >= ENOUGH and mine == list(other.parameters)[1:] and name not in other.unread()

    def vectors_in_its_place(self, name: str) -> tuple[str, CodeLocation] | None:
        """What is named for keys as this is for values, where two products take it, and the line of the later one."""
        stem = _OF_VALUES.fullmatch(name)
        keys = "" if stem is None else f"{stem['of']}_k{'ey' if stem['rest'] else ''}{stem['several']}"
        if keys not in self.parameters or self.parameters[name].default is not inspect.Parameter.empty:
            return None
        taken = {
            (one.lineno, one.col_offset)  # of a product within another once
            for each in ast.walk(self.tree)
            if (isinstance(each, ast.Call) and _PRODUCT.search(ast.unparse(each.func)))
            or (isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult))
            for one in ast.walk(each)
            if isinstance(one, ast.Name) and one.id == keys
        }
        return (keys, self._line(max(taken)[0])) if len(taken) > 1 else None

    def call_without_mask(self, owner: nn.Module) -> tuple[str, CodeLocation] | None:
        """An attention that it calls without a mask, though that would take one, and the line; None of others."""
        for each in ast.walk(self.tree):
            if not isinstance(each, ast.Call) or any(one.arg is None for one in each.keywords):
                continue
            if any(isinstance(one, ast.Starred) for one in each.args) or not isinstance(each.func, ast.Attribute):
                continue
            called = getattr(owner, each.func.attr, None)
            if ast.unparse(each.func.value) != "self" or not isinstance(called, nn.Module):
                continue
            taken = inspect.signature(called.forward).parameters
            given = {*list(taken)[: len(each.args)], *(one.arg for one in each.keywords)}
            masks = {name for name in taken if _is_mask(name)}
            is_flagged = any(call_meaning(str(name)) == "causal" for name in given)
            is_attention = isinstance(called, nn.MultiheadAttention) or _ATTENDS.search(code_of(called))
            if masks and not masks & given and not is_flagged and is_attention:
                return f"{each.func.attr}", self._line(each.lineno)
        return None


def _is_mask(name: str) -> bool:
    is_named = call_meaning(name) in ("mask", "padding") or _MASK.fullmatch(name.lower()) is not None
    return is_named and not NOT_OF_KEYS.search(name) and "head_mask" not in name
