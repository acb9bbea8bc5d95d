"""A second sequence that has to be handed over, and that nothing is read from."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.code import is_commented_out
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.roles.influence import is_changed, record_invocation
from regard.check.roles.instances import AttentionInstance
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Trace

__all__ = ["READ", "is_meant", "is_said_to_be_meant", "unread_sequence_findings"]

READ = {
    "context": "context-read",
    "q": "queries-from-their-input",
    "k": "keys-from-their-input",
    "v": "values-from-their-input",
}
"""The property that is violated, by the role of the sequence."""
_ON_PURPOSE = re.compile(
    r"\b(?:un-?used|ignor\w+|not (?:used|read|needed)|placeholder|(?:same|common|uniform) (?:signature|interface)"
    r"|compat\w*|ARG00[12])\b",
    re.I,
)
"""Said in the text of the call, or beside it, where an argument is there for other classes."""


def unread_sequence_findings(
    invocation: Invocation, base: Trace, instances: Sequence[AttentionInstance]
) -> Iterator[Finding]:
    """A sequence, required and named as one of several, without any influence on what is returned.

    Either no line names it, or what was computed from it was thrown away: an argument that is read under a condition
    which does not hold here, as of a block that may be an encoder's, is none.

    Args:
        invocation: the call.
        base: its run.
        instances: the attentions in it.
    """
    fresh = with_fresh_tokens(invocation)
    for stream in invocation.streams:
        name = stream.argument
        is_named = stream.role in ("q", "k", "v") and call_meaning(name) == stream.role
        if not is_named and (stream.role != "context" or call_meaning(name) not in ("context", "x")):
            continue
        function = _function(invocation.target)
        if function is None or not _is_required(function, name) or is_meant(invocation.target, function, name):
            continue
        other = record_invocation(invocation, {**invocation.arguments, name: fresh[name]})
        if other.error or not other.same_operations(base) or not base.outputs:
            continue
        pairs = zip(base.outputs, other.outputs, strict=True)
        if any(is_changed(one.data, two.data) for one, two in pairs):
            continue
        if not _is_named(function, name):
            why = "no line reads it"
        elif _is_computed_with(base, other):
            why = "what is computed from it is not used"
        else:
            continue
        message = f"{name} has no influence on the output: {why}"
        read = READ[stream.role]
        yield Finding("violation", read, PROPERTIES[read].step, message, _values_line(instances))
        return


def _function(target: Any) -> Any:
    """What is called; None where its text is not known."""
    call = type(target).forward if isinstance(target, nn.Module) else target
    return call if inspect.isfunction(call) or inspect.ismethod(call) else None


def _is_required(function: Any, name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return (
        parameter is not None
        and parameter.default is parameter.empty
        and "None" not in str(parameter.annotation)
        and "Optional" not in str(parameter.annotation)
    )


def is_meant(target: Any, function: Any, name: str) -> bool:
    """Whether the argument is there because the calls of other classes have it."""
    kind = type(target)
    for each in kind.__mro__[1:] if isinstance(target, nn.Module) else ():
        call = vars(each).get("forward")
        if each.__module__.partition(".")[0] == "torch" or not inspect.isfunction(call):
            continue
        if name in inspect.signature(call).parameters:
            return True
    text = _text(kind) if isinstance(target, nn.Module) else _text(function)
    return not text or is_said_to_be_meant(text) or is_commented_out(text, name)


def is_said_to_be_meant(text: str) -> bool:
    """Whether the text of a call says that something in it is there for other classes, or not used."""
    return _ON_PURPOSE.search(text) is not None


def _text(written: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(written))
    except (OSError, TypeError):
        return ""


def _is_named(function: Any, name: str) -> bool:
    """Whether the body of a function has the name, or passes on all of its names."""
    try:
        tree = ast.parse(_text(function))
    except SyntaxError:
        return True
    names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    return bool({name, "locals", "vars"} & names) or not names


def _is_computed_with(base: Trace, other: Trace) -> bool:
    """Whether an operation that is more than a view gave other numbers with another sequence."""
    return any(
        not one.is_view
        and any(is_changed(mine.data, its.data) for mine, its in zip(one.outputs, two.outputs, strict=False))
        for one, two in zip(base, other, strict=False)
    )


def _values_line(instances: Sequence[AttentionInstance]) -> CodeLocation | None:
    """Where the values of the last attention are made: those that should have been of the other sequence."""
    if not instances:
        return None
    last = instances[-1]
    run = last.run
    operation, number = last.values_place(last.sums[-1])
    made = run.owner_of(run.tags.inputs[operation][number])
    return run.trace.operations[max(made)].location if made else last.sums_location
