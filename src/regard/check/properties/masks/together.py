"""Masks that act only beside another one: each without effect alone, as of queries and of keys that are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from regard.check.properties.finding import Evidence
from regard.check.properties.masks.drawn import open_mask
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["beside_others"]

SHAPES = ("bq", "bk", "qk", "bqk")
"""Axes of the mask beside it: samples, queries, keys."""
FORMS = ("allowed", "blocked", "keep")
"""Of those that a call tells apart by running, one each."""


def beside_others(invocation: Invocation, evidence: Evidence, name: str) -> Iterator[tuple[Invocation, str]]:
    """The call with another mask that blocks nothing, in every form and shape that it takes, and the name of that one.

    Args:
        invocation: the call.
        evidence: its attention.
        name: of the mask that has no effect without others.
    """
    samples, _, queries, keys = evidence.base.dense(evidence.base.product).shape
    sizes = {"b": samples, "q": queries, "k": keys}
    for other in invocation.masks:
        if other == name or isinstance(invocation.arguments.get(other), Tensor):
            continue
        for shape in dict.fromkeys(tuple(sizes[letter] for letter in each) for each in SHAPES):
            for form in FORMS:
                beside = replace(invocation, arguments={**invocation.arguments, other: open_mask(shape, form)})
                if not record_invocation(beside).error:
                    yield beside, other
