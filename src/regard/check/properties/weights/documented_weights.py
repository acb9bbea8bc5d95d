"""Weights that are no softmax, beside a documentation that says they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from regard.check.properties.finding import Finding

__all__ = ["as_documented"]

_SOFTMAX = re.compile(r"soft-?max", re.I)
_OTHERWISE = re.compile(
    r"sigmoid|relu|rectif|\b(?:instead|rather|replac\w*|without|no|not|unlike|alternative\w*|either|option\w*)\b", re.I
)
"""What the documentation of another function of the scores says beside it."""
OTHER_WEIGHTS = {"sigmoid-weights": "sigmoids", "rectified-weights": "rectified scores"}
"""Designs whose weights are another function of the scores."""


def as_documented(found: Sequence[Finding], text: str) -> list[Finding]:
    """The findings of the weights; a design whose weights are no softmax is a mistake where one is promised.

    Args:
        found: what the weights were found to be.
        text: the name and the documentation of what was called.
    """
    if not _SOFTMAX.search(text) or _OTHERWISE.search(text):
        return [*found]
    return [
        replace(
            each,
            kind="violation",
            property="weights-sum-to-one",
            message=f"weights are {OTHER_WEIGHTS[each.property]}, which do not sum to 1: by the documentation they are "
            "a softmax",
        )
        if each.property in OTHER_WEIGHTS
        else each
        for each in found
    ]
