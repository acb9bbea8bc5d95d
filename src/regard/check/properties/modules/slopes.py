"""Gradients that are a part of the slope: what is computed without gradients moves the output as well."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import drawn_like

__all__ = ["slope_findings"]

STEP = 1e-5
"""Of a slope that is measured."""
PART = 0.01
"""Of a slope: what a gradient may lack, as of a maximum that cancels but for rounding and a small constant."""
SMOOTH = 1e-3
"""Of what is lacking: slopes of two steps differ by less where the output is smooth."""
_WITHOUT_GRADIENTS = re.compile(r"\bno_grad\b|\binference_mode\b|\bset_grad_enabled\(\s*False")
_ON_PURPOSE = re.compile(r"\bdetach|stop_?grad|straight.?through|\bFunction\b|momentum|moving average|\bema\b", re.I)
"""In code that says which way gradients are to go, or has a backward pass of its own."""


def slope_findings(invocation: Invocation) -> Iterator[Finding]:
    """The gradient of a sequence is the slope of the output, where some of it is computed without gradients.

    Args:
        invocation: a call of a function; sequences to which no gradient leads at all are not judged.
    """
    code = code_of(invocation.target)
    if invocation.arrays or not invocation.gradients or not _WITHOUT_GRADIENTS.search(code) or _ON_PURPOSE.search(code):
        return
    given = dict(invocation.arguments)
    names = [each.argument for each in invocation.streams if given[each.argument].is_floating_point()]
    leaves = {name: given[name].detach().clone().requires_grad_() for name in names}
    try:
        with torch.enable_grad():
            output = _first(invocation, given | leaves)
            if not output.requires_grad:
                return
            toward = drawn_like(output, seed=3)
            found = torch.autograd.grad((output * toward).sum(), [*leaves.values()], allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            direction = drawn_like(given[name], seed=4)
            by_gradient = 0.0 if gradient is None else float((gradient * direction).sum())
            far, near = (_slope(invocation, name, size * direction, toward, size) for size in (STEP, STEP / 10))
            lacking = abs(far - by_gradient)
            if by_gradient and lacking > PART * max(abs(far), abs(by_gradient)) and abs(far - near) < SMOOTH * lacking:
                message = (
                    f"along a random direction of {name} the output has a slope of {far:.4g}, and by its gradient one "
                    f"of {by_gradient:.4g}: a part of what {name} does is computed without gradients"
                )
                line = _line_without_gradients(invocation.target)
                yield Finding("violation", "gradient-of-the-whole", "output", message, line)
                return
    except (Failed, RuntimeError):
        return


def _first(invocation: Invocation, given: dict[str, Any]) -> Tensor:
    return invocation.outputs(invocation.run(given))[0]


def _slope(invocation: Invocation, name: str, step: Tensor, toward: Tensor, size: float) -> float:
    value = invocation.arguments[name]
    with torch.no_grad():
        ends = [_first(invocation, {**invocation.arguments, name: value + sign * step}).detach() for sign in (1, -1)]
    return float(((ends[0] - ends[1]) * toward).sum()) / (2 * size)


def _line_without_gradients(target: Any) -> CodeLocation | None:
    """The one line of the file that says so."""
    file = inspect.getmodule(target)
    try:
        lines = inspect.getsource(file).splitlines() if file is not None else []
    except (OSError, TypeError):
        return None
    places = [number for number, line in enumerate(lines, 1) if _WITHOUT_GRADIENTS.search(line)]
    path = getattr(file, "__file__", None)
    return CodeLocation(path, places[0], lines[places[0] - 1].strip()) if path and len(places) == 1 else None
