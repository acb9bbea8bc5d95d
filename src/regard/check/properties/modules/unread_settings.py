"""Settings of a module that are kept and never read, though the documentation says what either value does."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import nn

from regard.check.properties.attributes import tree_of
from regard.check.properties.documentation import says_unused
from regard.check.properties.finding import Finding
from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.subclasses import is_read_by_a_subclass

__all__ = ["unread_setting_findings"]

_LEFT_OUT = re.compile(
    r"\b(?:unused|ignored|no effect|compatib\w+|reserved|not (?:yet )?(?:used|supported|implemented))\b", re.I
)


def unread_setting_findings(target: Any) -> Iterator[Finding]:
    """A setting that was chosen, of which the documentation names both values, and that no line reads.

    One that is as it is by default was asked for by nobody.

    Args:
        target: what is judged.
    """
    if not isinstance(target, nn.Module):
        return
    for path, module in target.named_modules():
        kind = type(module)
        if kind.__module__.partition(".")[0] == "torch":
            continue
        text = inspect.cleandoc(f"{kind.__doc__ or ''}\n\n{kind.__init__.__doc__ or ''}")
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            value = vars(module).get(name)
            if not isinstance(value, bool) or value is parameter.default or not _says_both(text, name):
                continue
            is_left = _is_kept_alone(kind, name) and not _is_read(kind, name) and not is_read_by_a_subclass(kind, name)
            if not is_left or says_unused(text, name) or _LEFT_OUT.search(f"{text}\n{source_of(kind)}"):
                continue
            where = f"{path}.{name}" if path else name
            message = f"{where} = {value} was chosen, and no line reads it; by its documentation {not value} is another"
            yield Finding("violation", "settings-read", "call", message)
            return


def _says_both(text: str, name: str) -> bool:
    """Whether a documentation names both values of a setting."""
    return set(re.findall(rf"\b{re.escape(name)}\s*=+\s*(True|False)\b", text)) == {"True", "False"}


def _is_read(kind: type, name: str) -> bool:
    """Whether a line of the files of a class, of its bases or of their package may read an attribute of a name."""
    packages = {each.__module__.partition(".")[0] for each in own_classes(kind)}
    files = [file for path, file in [*sys.modules.items()] if path.partition(".")[0] in packages]
    for file in files:
        tree = tree_of(file)
        if tree is None:
            return True
        for each in ast.walk(tree):
            is_attribute = isinstance(each, ast.Attribute) and each.attr == name and isinstance(each.ctx, ast.Load)
            if is_attribute or (isinstance(each, ast.Constant) and each.value == name):
                return True
            if isinstance(each, ast.Attribute) and each.attr == "__dict__":
                return True
    return False


def _is_kept_alone(kind: type, name: str) -> bool:
    """Whether its constructor does nothing with an argument but keep it."""
    begun = vars(kind).get("__init__")
    if begun is None:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(begun)))
    except (OSError, TypeError, SyntaxError):
        return False
    return sum(isinstance(each, ast.Name) and each.id == name for each in ast.walk(tree)) == 1
