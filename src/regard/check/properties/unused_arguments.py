"""Arguments that the documentation says are not used, each by its name or all behind one."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

from torch import nn

from regard.check.properties.documentation import documentation_of, says_unused
from regard.check.target.argument import nodes_of, source_of, taken_by

__all__ = ["is_said_unused"]

_NOTED = re.compile(
    r"#\s*(?:(?:is|currently)\s+)?(?:not\s+used|unused|ignored)\b(?!\s+(?:if|when|where|unless|with))", re.I
)
"""As in "mask: Tensor | None = None,  # not used, kept for other layers"."""
_BEHIND = re.compile(
    r"(?P<named>(?:[`'\"*]*\w+[`'\"*]*\s*,\s*)*[`'\"*]*\w+[`'\"*]*\s+and\s+)?\b(?:all|any|every|the)\s+(?:of\s+the\s+)?(?:other\s+)?(?:parameters?|arguments?)\s+"
    r"(?:after|behind|following|that\s+follow)\s+[`'\"*]*(?P<last>\w+)[`'\"*]*\s[^.;:]*?"
    r"\b(?:is|are)\s+(?:not\s+used|unused|ignored)\s*(?:[.,;]|$)",
    re.I,
)
"""As in "memory and all parameters after tgt_mask are present but are unused": the last one that is used."""


def is_said_unused(target: Any, name: str) -> bool:
    """Whether the documentation says of an argument that it is not used, without a condition.

    Args:
        target: a function, or a module.
        name: of the argument.
    """
    text = documentation_of(target)
    if says_unused(text, name):
        return True
    if _is_noted_unused(target, name):
        return True
    try:
        names = [*inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters]
    except (ValueError, TypeError):
        return False
    for each in _BEHIND.finditer(" ".join(text.split())):
        is_named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", each["named"] or "") is not None
        if each["last"] in names and (is_named or name in names[names.index(each["last"]) + 1 :]):
            return True
    return False


def _is_noted_unused(target: Any, name: str) -> bool:
    """Whether the comment behind an argument, on its line of the signature, begins by saying that it is not used."""
    source = source_of(type(target).forward if isinstance(target, nn.Module) else target)
    calls = nodes_of(source, ast.FunctionDef)[:1]
    lines = textwrap.dedent(source).splitlines()
    for call in calls:
        last = {each.lineno: each for each in taken_by(call)}  # of its line: the comment is on no other
        for each in last.values():
            if each.arg == name and _NOTED.search(lines[each.lineno - 1].partition(each.arg)[2]) is not None:
                return True
    return False
