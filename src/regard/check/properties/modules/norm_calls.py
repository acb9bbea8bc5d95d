"""Where norms are called in a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.check.target.preparation import modules_in
from regard.check.trace.operation import Operation, Trace

__all__ = ["NormCall", "norm_calls", "norm_paths", "parent_of"]


@dataclass(frozen=True)
class NormCall:
    """One call of a norm."""

    path: str
    first: Operation
    last: Operation
    given: int
    """The memory of what it takes."""
    returned: int


def norm_paths(target: Any) -> set[str]:
    """The paths of all modules of a target that are called norms and have no modules of their own."""
    return {
        path
        for module in modules_in(target)
        for path, each in module.named_modules()
        if "norm" in type(each).__name__.lower() and not list(each.children())
    }


def norm_calls(target: Any, trace: Trace) -> Iterator[NormCall]:
    """Each call of a norm that returns what it takes, in the same shape.

    Args:
        target: what was called.
        trace: its run.
    """
    paths, copied = norm_paths(target), trace.originals()
    for path, group in itertools.groupby(trace, lambda each: each.module):
        operations = [each for each in group if each.inputs and each.outputs] if path in paths else []
        if operations and operations[0].inputs[0].shape == operations[-1].outputs[0].shape:
            given = operations[0].inputs[0].storage
            returned = operations[-1].outputs[0].storage
            yield NormCall(path, operations[0], operations[-1], copied.get(given, given), returned)


def parent_of(path: str) -> str:
    """The path of the module that a module is a part of."""
    return path.rpartition(".")[0]
