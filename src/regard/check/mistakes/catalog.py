"""Every mistake that can be named. The search tries them in this order."""

from __future__ import annotations

from collections.abc import Mapping

from regard.check.mistakes.behaviour import BEHAVIOUR
from regard.check.mistakes.block import BLOCK
from regard.check.mistakes.masks import MASK_FILLING, MASK_READING
from regard.check.mistakes.mistake import Mistake
from regard.check.mistakes.output import OUTPUT
from regard.check.mistakes.positions import POSITIONS
from regard.check.mistakes.projections import PROJECTIONS
from regard.check.mistakes.scores import SCORES
from regard.check.mistakes.weights import WEIGHTS

__all__ = ["MISTAKES"]

MISTAKES: Mapping[str, Mistake] = {
    each.id: each
    for each in (
        *PROJECTIONS,
        *MASK_READING,
        *SCORES,
        *MASK_FILLING,
        *WEIGHTS,
        *OUTPUT,
        *BEHAVIOUR,
        *BLOCK,
        *POSITIONS,
    )
}
