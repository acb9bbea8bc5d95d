"""Masks among the arguments of an attention that no line of it reads: a proof that needs no call."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from regard.check.location import CodeLocation
from regard.check.properties.documentation import documentation_of, documents_a_use, says_unused
from regard.check.properties.finding import Finding
from regard.check.properties.masks.settings import NOT_OF_KEYS, OTHER_SEQUENCE
from regard.check.target import Invocation
from regard.check.target.classes import METHODS
from regard.check.target.names import call_meaning

__all__ = ["documented_unread_findings", "unread_mask"]

_ATTENDS = re.compile(r"softmax|scaled_dot_product_attention")
"""Names in code that makes the weights itself, and hands nothing on to what might read the mask."""
NUMBERS = (int, float, bool, "int", "float", "bool")
"""Annotations of what is no mask, as of pad, the id of padding."""
_READS_ALL = frozenset({"locals", "vars", "eval", "exec"})


def documented_unread_findings(invocation: Invocation) -> Iterator[Finding]:
    """A mask that the documentation lists, and that no line reads, of attention in whose steps no weights are seen.

    One that it says nothing of may be there for the sake of others that are called alike, as in many linear attentions.

    Args:
        invocation: a call.
    """
    unread = unread_mask(invocation.target, is_attention=True)
    if unread is not None and documents_a_use(documentation_of(invocation.target), unread[0]):
        name, line = unread
        message = f"{name} is documented, and no line reads it: it has no effect, and hides no key"
        yield Finding("violation", "mask-argument", "mask", message, line)


def unread_mask(implementation: Any, *, is_attention: bool = False) -> tuple[str, CodeLocation] | None:
    """The name of a mask that nothing reads, and the line that it is an argument on; None where all are read.

    An argument that is deleted is not meant to be read, nor is one that the documentation says is not used.

    Args:
        implementation: a function, a class or an object.
        is_attention: whether it is known to be attention; else its code has to make weights.
    """
    function = _function_of(implementation)
    if function is None:
        return None
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    kind = implementation if inspect.isclass(implementation) else type(implementation)
    texts = (function.__doc__, None if inspect.isroutine(implementation) else kind.__doc__)
    documentation = "\n\n".join(inspect.cleandoc(each) for each in texts if each)
    names = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    read = {each.id for each in names if not isinstance(each.ctx, ast.Store)}
    used = read | {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    if read & _READS_ALL or not (is_attention or any(_ATTENDS.search(each) for each in used)):
        return None
    for name, parameter in inspect.signature(function).parameters.items():
        is_number = isinstance(parameter.default, int | float) or parameter.annotation in NUMBERS
        is_mask = call_meaning(name) in ("mask", "padding") and not is_number
        is_mask = is_mask and not (name.startswith("_") or NOT_OF_KEYS.search(name) or OTHER_SEQUENCE.search(name))
        if is_mask and name not in read and not says_unused(documentation, name):
            at = next((number for number, line in enumerate(lines) if re.search(rf"\b{name}\b", line)), 0)
            return name, CodeLocation(function.__code__.co_filename, first + at, lines[at].strip())
    return None


def _function_of(implementation: Any) -> Callable[..., Any] | None:
    """What is called of it, as it is written."""
    if inspect.isfunction(implementation):
        return implementation
    kind = implementation if inspect.isclass(implementation) else type(implementation)
    for name in (*METHODS, "__call__"):
        found = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
        if inspect.isfunction(found):
            return found
    return None
