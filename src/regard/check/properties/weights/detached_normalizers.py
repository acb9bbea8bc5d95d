"""What a normalizer of linear attention learns by: its own gradient, held against finite differences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.properties.weights.detached_sums import DIVISIONS, WITHOUT_GRADIENTS, is_said_to_stop
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["detached_normalizer_findings"]

_ON_PURPOSE = re.compile(
    r"quanti[sz]|straight.?through|\bste\b|codebook|gumbel|truncat|\bbptt\b|\bfr(?:eez|ozen)", re.I
)
"""In the code: what rounds, chooses, cuts or is kept, to which no gradient leads."""
_MAXIMA = frozenset({"amax", "max"})
_RECIPROCALS = frozenset({"reciprocal", "reciprocal_", "__rtruediv__", "__rdiv__"})
STEP = 1e-5
OTHER, SAME = 1e-2, 1e-4
"""Of two slopes beside the larger of them: that differ, and that are the same."""
MOST = 64
"""Divisions of a call that are looked at."""
Division = tuple[Tensor | None, Tensor]


def detached_normalizer_findings(invocation: Invocation) -> Iterator[Finding]:
    """A denominator that changes with what is learned by more than its gradient says, as its numerator does not.

    What is subtracted from exponents in both without a gradient, as a maximum, changes no quotient: then the output's
    slope is that of its gradient.

    Args:
        invocation: a call.
    """
    code = code_of(invocation.target)
    if invocation.arrays or not invocation.gradients or not WITHOUT_GRADIENTS.search(code):
        return
    if _ON_PURPOSE.search(code) or is_said_to_stop(code):
        return
    try:
        (output, found), learned = _run(invocation, 0.0)
        several = [_run(invocation, sign * STEP)[0] for sign in (1, -1)]
    except (Failed, RuntimeError):
        return
    if not learned or any(len(each[1]) != len(found) for each in several):
        return
    (above, more), (below, less) = several
    try:
        slopes = _slopes(output, above, below, learned)
    except Exception:  # a backward pass of the code's own may raise anything: others say so
        return
    if not _differ(*slopes):
        return
    for mine, one, other in zip(found[:MOST], more, less, strict=False):
        numerator, denominator = mine
        if not _normalizes(numerator, denominator) or one[1].shape != denominator.shape != other[1].shape:
            continue
        if not _differ(*_slopes(denominator, one[1], other[1], learned)):
            continue
        if numerator is not None and one[0] is not None and other[0] is not None:
            slopes = _slopes(numerator, one[0], other[0], learned)
            if abs(slopes[0] - slopes[1]) > SAME * max(*map(abs, slopes), 1e-6):
                continue
        message = (
            "what a query reads is divided by a normalizer to which not all of its gradient leads: the output is "
            "right, and queries and keys are trained by another slope"
        )
        yield Finding("violation", "gradient-of-the-whole", "weights", message)
        return


def _run(invocation: Invocation, step: float) -> tuple[tuple[Tensor, list[Division]], list[tuple[Tensor, Tensor]]]:
    """An output and the divisions of a call; what it learns from, each with the direction that it is moved along."""
    generator = torch.Generator().manual_seed(17)
    live = copied(invocation.target) if isinstance(invocation.target, nn.Module) else invocation.target
    given, learned = dict(invocation.arguments), list[tuple[Tensor, Tensor]]()
    for stream in invocation.streams:
        value = given[stream.argument]
        if value.is_floating_point():
            way = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            given[stream.argument] = (value.detach() + step * way).requires_grad_()
            learned.append((given[stream.argument], way))
    for parameter in live.parameters() if isinstance(live, nn.Module) else ():
        if parameter.is_floating_point():
            way = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            with torch.no_grad():
                parameter.add_(way, alpha=step)
            learned.append((parameter.requires_grad_(), way))
    mode = _Divisions()
    with torch.enable_grad(), mode:
        result = invocation.run(given, target=live, shared=[each.argument for each in invocation.streams])
    return (invocation.outputs(result)[0], mode.found), learned


def _slopes(middle: Tensor, above: Tensor, below: Tensor, learned: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """How a sum of numbers changes along the direction: by their gradient, and by their differences."""
    taken = torch.randn(middle.shape, generator=torch.Generator().manual_seed(18), dtype=middle.dtype)
    measured = float((taken * (above - below).detach()).sum()) / (2 * STEP)
    if not middle.requires_grad:
        return 0.0, measured
    leaves = [each for each, _ in learned]
    slopes = torch.autograd.grad((taken * middle).sum(), leaves, retain_graph=True, allow_unused=True)
    pairs = zip(slopes, learned, strict=True)
    return sum(float((each * way).sum()) for each, (_, way) in pairs if each is not None), measured


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > OTHER * max(abs(one), abs(other), 1e-6)


def _normalizes(numerator: Tensor | None, denominator: Tensor) -> bool:
    """Whether a denominator is positive, the same along an axis, and no sum of the numbers above it without signs."""
    is_whole = numerator is not None and numerator.shape == denominator.shape
    if denominator.ndim < 2 or (is_whole and 1 not in denominator.shape[-2:]):
        return False
    if not bool((denominator > 0).all()):
        return False
    if numerator is None or numerator.ndim != denominator.ndim or not bool((numerator < 0).any()):
        return True
    sizes = enumerate(zip(numerator.shape, denominator.shape, strict=True))
    axes = [axis for axis, (one, other) in sizes if one != other]
    if len(axes) != 1:
        return True
    total = numerator.detach().abs().sum(axes[0], keepdim=True)  # as of retention, which a norm comes behind
    return total.shape != denominator.shape or not torch.allclose(
        total.clamp(min=float(denominator.detach().min())), denominator
    )


class _Divisions(TorchFunctionMode):
    """Keeps what is divided, and by what, where that is no number.

    A maximum that is detached keeps its gradient: with an epsilon beside the exponentials that it is subtracted from, a
    quotient changes with it after all (Performer's kernel), by what nobody asks to be learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Division] = []
        self._maxima: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "detach" and any(each is args[0] for each in self._maxima):
            return args[0]
        if name in _MAXIMA:
            result = func(*args, **(kwargs or {}))
            self._maxima.append(result if isinstance(result, Tensor) else result[0])
            return result
        if name in DIVISIONS and len(args) > 1 and isinstance(args[1], Tensor):
            self._keep(args[0], args[1])
        elif name in _RECIPROCALS and args and isinstance(args[0], Tensor):
            self._keep(None, args[0])
        return func(*args, **(kwargs or {}))

    def _keep(self, numerator: Any, denominator: Tensor) -> None:
        if denominator.is_floating_point() and denominator.numel() > 1 and len(self.found) < MOST:
            self.found.append((numerator if isinstance(numerator, Tensor) else None, denominator))
