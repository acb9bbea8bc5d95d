"""Gradients that are not the slope: where a part is computed without gradients, or by a backward pass of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.location import CodeLocation
from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import drawn_like

__all__ = ["computes_with_gradients", "own_backward_findings", "slope_findings"]

STEP = 1e-5
"""Of a slope that is measured."""
PART = 0.01
"""Of a slope: what a gradient may lack, as of a maximum that cancels but for rounding and a small constant."""
SMOOTH = 1e-3
"""Of what is lacking: slopes of two steps differ by less where the output is smooth."""
_WITHOUT_GRADIENTS = re.compile(r"\bno_grad\b|\binference_mode\b|\bset_grad_enabled\(\s*False")
_ON_PURPOSE = re.compile(
    r"\bdetach|stop_?grad|straight.?through|\bFunction\b|momentum|moving average|\bema\b"
    r"|frozen|freez|teacher|pretrained|quanti[sz]|codebook|requires_grad",
    re.I,
)
"""In code that says which way gradients are to go, or has a backward pass of its own."""
_NOT_TO_LEARN = re.compile(
    r"momentum|moving average|\bema\b|frozen|freez|teacher|pretrained|requires_grad|inference|quanti[sz]", re.I
)
"""In code of a module whose parameters are not to learn by the output, or not here."""
_OWN_BACKWARD = re.compile(r"^class \w+\((?:[\w.]+\.)?Function\):", re.M)
_BACKWARD = re.compile(r"^\s+def (?:backward|vjp)\(")
_ANOTHER_SLOPE = re.compile(
    r"\bdetach|stop_?grad|straight.?through|\bste\b|surrogate|revers|quanti[sz]|binari[sz]|approximat|\bround|\bsign\b"
    r"|\bclip|(?:scal|clamp|penal)\w*[ _-]?(?:the )?grad|grad\w*[ _-]?(?:scal|clamp|penal|mult)|spars",
    re.I,
)
"""In code whose own backward pass is meant to be another than the slope."""


def slope_findings(invocation: Invocation) -> Iterator[Finding]:
    """The gradient of a sequence is the slope of the output, where some of it is computed without gradients.

    Args:
        invocation: a call; sequences to which no gradient leads at all are not judged.
    """
    code = code_of(invocation.target)
    if invocation.arrays or not invocation.gradients or not _WITHOUT_GRADIENTS.search(code) or _ON_PURPOSE.search(code):
        return
    why = "a part of what it does is computed without gradients"
    yield from _of_another_slope(invocation, why, _WITHOUT_GRADIENTS)


def computes_with_gradients(invocation: Invocation, handed_out: Collection[int]) -> bool:
    """Whether gradients lead from what is returned to a sequence, in code that does not say that it is not to learn.

    Then what is cut off from them was not meant to be, as where a whole is computed for inference alone.

    Args:
        invocation: a call.
        handed_out: the numbers of the outputs that are keys and values, for another call.
    """
    if invocation.arrays or not invocation.gradients or _NOT_TO_LEARN.search(code_of(invocation.target)):
        return False
    given = dict(invocation.arguments)
    names = [each.argument for each in invocation.streams if given[each.argument].is_floating_point()]
    leaves = {name: given[name].detach().clone().requires_grad_() for name in names}
    try:
        with torch.enable_grad():
            outputs = invocation.outputs(invocation.run(given | leaves))
    except Failed:
        return False
    return any(each.requires_grad for at, each in enumerate(outputs) if at not in handed_out)


def own_backward_findings(invocation: Invocation) -> Iterator[Finding]:
    """The same of code with a backward pass of its own, an `autograd.Function`, that is not said to be another slope.

    Args:
        invocation: a call; where the output is not smooth, or no gradient comes back, it is not judged.
    """
    code = code_of(invocation.target)
    if invocation.arrays or not _OWN_BACKWARD.search(code) or _ANOTHER_SLOPE.search(code):
        return
    yield from _of_another_slope(invocation, "the code has a backward pass of its own", _BACKWARD)


def _of_another_slope(invocation: Invocation, why: str, says: re.Pattern[str]) -> Iterator[Finding]:
    """The first sequence whose gradient is another than the slope, and the line that says why."""
    for name, slope, by_gradient in _other_slopes(invocation):
        message = (
            f"along a random direction of {name} the output has a slope of {slope:.4g}, and by its gradient one of "
            f"{by_gradient:.4g}: {why}"
        )
        line = _one_line(invocation.target, says)
        yield Finding("violation", "gradient-of-the-whole", "output", message, line)
        return


def _other_slopes(invocation: Invocation) -> Iterator[tuple[str, float, float]]:
    """Sequences by whose gradient the slope along a direction is another than is measured: its name, and both."""
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
                yield name, far, by_gradient
    except Exception:  # a backward pass of the code's own may raise anything
        return


def _first(invocation: Invocation, given: dict[str, Any]) -> Tensor:
    return invocation.outputs(invocation.run(given))[0]


def _slope(invocation: Invocation, name: str, step: Tensor, toward: Tensor, size: float) -> float:
    value = invocation.arguments[name]
    with torch.no_grad():
        ends = [_first(invocation, {**invocation.arguments, name: value + sign * step}).detach() for sign in (1, -1)]
    return float(((ends[0] - ends[1]) * toward).sum()) / (2 * size)


def _one_line(target: Any, says: re.Pattern[str]) -> CodeLocation | None:
    """The one line of the file of a target that says something; None where there are several."""
    file = inspect.getmodule(type(target) if isinstance(target, nn.Module) else target)
    try:
        lines = inspect.getsource(file).splitlines() if file is not None else []
    except (OSError, TypeError):
        return None
    places = [number for number, line in enumerate(lines, 1) if says.search(line)]
    path = getattr(file, "__file__", None)
    return CodeLocation(path, places[0], lines[places[0] - 1].strip()) if path and len(places) == 1 else None
