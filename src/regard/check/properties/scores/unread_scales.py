"""A scale that a module keeps for normalized queries and keys, while their scores have that of others."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from regard.check.properties.attributes import SCALE_NAME, is_unread
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.scores.formula import SAME_NUMBER, ScoreFit
from regard.check.target import Invocation

__all__ = ["unread_cosine_scale"]


def unread_cosine_scale(invocation: Invocation, evidence: Evidence, fit: ScoreFit) -> Iterator[Finding]:
    """A scale above 1 that no line reads, where normalized vectors are multiplied and divided by the root of the width.

    Of unit vectors no score is larger than 1 before it is scaled: divided again, all keys get nearly the same weight.
    A scale that is learned is another number than these.

    Args:
        invocation: the call.
        evidence: of the attention.
        fit: what its scores are.
    """
    table, usual = evidence.base, (1.0, fit.width**-0.5)
    if not isinstance(invocation.target, nn.Module) or math.isnan(fit.scale) or not table.normalized:
        return
    if not any(abs(fit.scale - each) < SAME_NUMBER * each for each in usual):
        return
    for path, owner in invocation.target.named_modules():
        for name, value in vars(owner).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 1
            if is_number and SCALE_NAME.fullmatch(name) and is_unread(type(owner), name):
                whole = f"{path}.{name}" if path else name
                message = (
                    f"queries and keys are normalized and scores are times {fit.scale:.4g}; {whole} = {value:.4g} is "
                    "kept, and no line reads it"
                )
                yield Finding("violation", "scale", "scale", message, table.instance.scores_location)
                return
