"""Dropout of scores, before their softmax: what is dropped is a score of 0, not a weight of 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied, in_mode

__all__ = ["dropped_score_findings"]

SAME = 1e-5
"""Of the largest score: what scores that are the same differ by, in float32."""
_MEANT = re.compile(
    r"drop[-_ ]?keys?\b|drop\w* +(?:\w+ +){0,3}(?:scores?|logits?|energ\w+)|(?:scores?|logits?|energy)[-_ ]+drop"
    r"|drop[^.\n]*before +(?:the +)?soft-?max",
    re.I,
)
"""In a code: that scores are what is dropped."""


def dropped_score_findings(invocation: Invocation, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Dropout that a module in training hands the numbers that its softmax takes.

    Args:
        invocation: a call of a module.
        instances: its attentions.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or _MEANT.search(code_of(target)):
        return
    live, dropouts = copied(target), _Dropouts()
    try:
        with dropouts:
            invocation.run(target=in_mode(live, training=True))
    except (Failed, RuntimeError):
        return
    dropped = dropouts.given
    for instance in (each for each in instances if each.scores and dropped):
        first, last = instance.scores[0].operation.index, instance.sums[0].operation.index
        for softmax in instance.run.trace.operations[first:last]:
            if softmax.name in SOFTMAXES and any(_is_same(each, softmax.inputs[0].data) for each in dropped):
                message = (
                    "in training, dropout is given the scores, before their softmax: a score that is dropped is 0, "
                    "and its key keeps a weight"
                )
                yield Finding("violation", "weights-dropped", "weights", message, softmax.location, instance.module)
                return


class _Dropouts(TorchFunctionMode):
    """Keeps what is given to dropout, and drops nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in ("dropout", "dropout_"):
            return func(*args, **kwargs)
        given = args[0] if args else kwargs["input"]
        self.given.append(given.detach().clone())
        return given


def _is_same(dropped: Tensor, scores: Tensor) -> bool:
    if dropped.numel() != scores.numel() or dropped.shape[-1] != scores.shape[-1]:
        return False
    live = scores.isfinite()
    if not bool(live.any()):
        return False
    gap = (dropped.detach().reshape(scores.shape) - scores)[live].abs().max()
    return float(gap) <= SAME * max(1.0, float(scores[live].abs().max()))
