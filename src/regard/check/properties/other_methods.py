"""Methods of a module beside its call that take what the call is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.check.target import Invocation
from regard.check.target.preparation import copied
from regard.check.trace.operation import Trace
from regard.check.trace.recorder import record

__all__ = ["methods_of_a_call", "needs_of", "run_of_method"]


def methods_of_a_call(invocation: Invocation) -> list[str]:
    """The other methods of a module's class that take what its call is given, and need nothing else."""
    if not isinstance(invocation.target, nn.Module):
        return []
    kind, given = type(invocation.target), set(invocation.arguments)
    found = []
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        several = [*inspect.signature(method).parameters.values()][1:]
        needs = {each.name for each in several if each.default is each.empty}
        is_own = not method.__module__.startswith("torch.") and not name.startswith("_") and name != "forward"
        if is_own and needs <= given and given <= {each.name for each in several}:
            found.append(name)
    return found


def needs_of(method: Callable[..., Any]) -> list[str]:
    """The arguments that a method has to be given, besides the object itself."""
    return [each.name for each in [*inspect.signature(method).parameters.values()][1:] if each.default is each.empty]


def run_of_method(invocation: Invocation, method: str, name: str, labels: Tensor) -> Trace:
    """The run of a method of a copy of the module, with other labels."""
    call = replace(invocation, positional=[], completion=None)
    return record(
        lambda watch: call.run(
            {**invocation.arguments, name: labels}, watch=watch, target=getattr(copied(invocation.target), method)
        ),
        outputs=invocation.outputs,
        lines=True,
    )
