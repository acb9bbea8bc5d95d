"""Weights that are divided by their own sum, to which no gradient leads: a softmax learns by both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.properties.code import code_of, sentences_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["DIVISIONS", "WITHOUT_GRADIENTS", "detached_sum_findings", "is_said_to_stop"]

WITHOUT_GRADIENTS = re.compile(r"\bdetach|\bno_grad\b|\.data\b|\binference_mode\b|stop_?grad")
_TEXTS = re.compile(r'"""(.*?)"""|#+ *([^\n]*)', re.S)
"""Documentation and comments."""
_MEANT = re.compile(
    r"(?=.*\b(?:sums?|totals?|denominators?|normali[sz]\w*|partition|divisors?)\b)"
    r"(?=.*(?:detach|stop|constant|gradients?\b|backprop))",
    re.I | re.S,
)
"""In a sentence of a documentation: no gradient is to lead to the sum."""
DIVISIONS = frozenset({"div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide"})
SAME = 1e-9


def detached_sum_findings(invocation: Invocation) -> Iterator[Finding]:
    """Numbers with a gradient that are divided by their sum, which has none.

    The output is right, and queries and keys are trained by another slope: w (g - sum(w g)) loses its second part.

    Args:
        invocation: a call.
    """
    target = invocation.target
    if invocation.arrays or not invocation.gradients or not WITHOUT_GRADIENTS.search(code_of(target)):
        return
    if is_said_to_stop(code_of(target)):
        return
    given = dict(invocation.arguments)
    for stream in invocation.streams:
        if given[stream.argument].is_floating_point():
            given[stream.argument] = given[stream.argument].detach().clone().requires_grad_()
    mode = _Divisions()
    live = copied(target) if isinstance(target, nn.Module) else target
    try:
        with torch.enable_grad(), mode:
            invocation.run(given, target=live)
    except (Failed, RuntimeError):
        return
    if mode.found:
        message = (
            "weights are divided by their sum, and no gradient leads to it: the output is that of a softmax, and what "
            "is trained by it follows another slope"
        )
        yield Finding("violation", "gradient-of-the-whole", "weights", message)


def is_said_to_stop(code: str) -> bool:
    """Whether the documentation or a comment in a text says that no gradient is to lead to a sum."""
    said = [one for each in _TEXTS.findall(code) for one in sentences_of(each[0] or each[1])]
    return any(_MEANT.search(each) for each in said)


class _Divisions(TorchFunctionMode):
    """Notices a division of what has a gradient by its sum, which has none."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in DIVISIONS and len(args) > 1 and torch.is_grad_enabled():
            one, other = args[:2]
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                self.found |= one.requires_grad and not other.requires_grad and _is_sum(one.detach(), other)
        return func(*args, **(kwargs or {}))


def _is_sum(one: Tensor, other: Tensor) -> bool:
    """Whether the second holds the sums of numbers of the first that are not negative, along one axis."""
    if one.ndim != other.ndim or not one.is_floating_point() or one.numel() <= other.numel():
        return False
    axes = [axis for axis, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if sizes[0] != sizes[1]]
    if len(axes) != 1 or other.shape[axes[0]] != 1 or bool((one < 0).any()):
        return False
    return torch.allclose(one.sum(axes[0], keepdim=True), other, rtol=SAME, atol=0.0)
