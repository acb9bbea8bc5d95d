"""Weights that follow others of a module slowly, by a moving average that each call in train() takes a step of.

He et al. 2020, "Momentum Contrast for Unsupervised Visual Representation Learning", section 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor, nn

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, in_mode

__all__ = ["moving_weight_findings"]

_IN_TRAINING = re.compile(r"\b(?:during|in|when|while) train(?:ing)?\b", re.I)
"""In a documentation: what is updated is not where a model is evaluated. Many a forward is of training alone."""
_SLOW = re.compile(r"\bslow(?:ly)?\b|\bmomentum\b|\bmoving average\b|\bema\b", re.I)
HALF = 0.5
"""The share of the way to the others in one step, of which nobody would say that it is slow."""
SAME = 1e-5
"""How much what a step did may differ from an average, as a share of the step."""


def moving_weight_findings(invocation: Invocation) -> Iterator[Finding]:
    """Weights that move in eval(), where a documentation says in training, and slow ones that go most of the way.

    Args:
        invocation: a call of a module that is in eval().
    """
    target = invocation.target
    said = documentation_of(target) if isinstance(target, nn.Module) else ""
    if not _SLOW.search(said):
        return
    for training in (False, True):
        live = in_mode(copied(target), training=training)
        before = {name: each.detach().clone() for name, each in live.named_parameters()}
        try:
            invocation.run(target=live)
        except Failed:
            return
        moved = {name: each.detach() for name, each in live.named_parameters() if not each.equal(before[name])}
        found = next(((name, *step) for name, each in moved.items() if (step := _step(name, each, before))), None)
        if found is None:
            continue
        name, other, share = found
        if not training and _IN_TRAINING.search(said):
            message = f"a call in eval() moves {name} towards {other}; by its documentation training does"
            yield Finding("violation", "average-kept-in-eval", "call", message)
            return
        if HALF < share < 1 - SAME:
            message = f"each call moves {name} {share:.4g} of the way to {other}: it should follow that slowly"
            yield Finding("violation", "average-moves-slowly", "call", message)
            return


def _step(name: str, after: Tensor, before: dict[str, Tensor]) -> tuple[str, float] | None:
    """The weights that others moved towards, and the share of the way; None where they did not move on a line to any.

    Args:
        name: of those that moved.
        after: their numbers.
        before: those of all, by name.
    """
    step = after - before[name]
    for other, numbers in before.items():
        if other == name or numbers.shape != step.shape or numbers.ndim < 2:
            continue
        way = numbers - before[name]
        share = float((step * way).sum() / (way * way).sum().clamp(min=1e-300))
        if share > 0 and float((step - share * way).abs().max()) <= SAME * float(step.abs().max()):
            return other, share
    return None
