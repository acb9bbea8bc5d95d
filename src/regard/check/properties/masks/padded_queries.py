"""Masks of queries that are padding: beside keys that are none, what such a query reads is a number all the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import open_mask
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.mask_values import write_mask

__all__ = ["padded_query_findings"]

OF_QUERIES = re.compile(r"(?:q|query|queries)_?(?:pad(?:ding)?_?)?(?:masks?|valid|padding|pad)", re.I)
"""The name of a mask that says which queries are padding."""
NOTHING = 1e-9
"""What open masks may change at most."""
FORMS = ("allowed", "blocked", "keep", "block")
KEY_SHAPES = ("bk", "b1k", "b11k")
NOT_A_NUMBER = re.compile(r"\bnans?\b|\bnot a number\b", re.I)
"""In a documentation or a comment: it is known."""


def padded_query_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether a query that is padding reads what is no number, where all keys are real: its scores are all hidden.

    In the next layer its key is no number either, and no mask helps: zero times that is no number. Nor does it help
    that a loss leaves it out: the gradients of the projections are none either.

    Args:
        invocation: a call with one attention.
        evidence: of it.
    """
    names = [each for each in invocation.masks if OF_QUERIES.fullmatch(each)]
    if not names or any(
        map(NOT_A_NUMBER.search, [documentation_of(invocation.target), *comments_of(invocation.target)])
    ):
        return
    samples, _, queries, keys = evidence.base.dense(evidence.base.product).shape
    if samples < 2 or queries < 2:
        return
    name, sizes = names[0], {"b": samples, "k": keys, "1": 1}
    others = [
        each for each in invocation.masks if each != name and not isinstance(invocation.arguments.get(each), Tensor)
    ]
    real = torch.ones(samples, queries, dtype=torch.bool)
    padded = real.clone()
    padded[0, -1] = False
    shapes = [[sizes[letter] for letter in each] for each in KEY_SHAPES]
    without = _outputs(invocation, {})
    for form, (other, shape) in product(FORMS, [("", [0]), *product(others[:2], shapes)]):
        beside = {other: open_mask(shape, form)} if other else {}
        free, given = (_outputs(invocation, {**beside, name: write_mask(each, form)}) for each in (real, padded))
        if not free or not given or any(bool(each.isnan().any()) for each in free):
            continue
        is_same = not without or without[0].shape == free[0].shape
        if not is_same or (without and not torch.allclose(without[0], free[0], NOTHING, NOTHING)):
            continue  # what is meant to hide nothing hides something, or has axes too many: it is another form
        lost = given[0].isnan()
        if free[0].shape != given[0].shape or int(lost.sum()) * samples * queries != lost.numel():
            continue
        together = f" beside an open {other}" if other else ""
        message = (
            f"a query that {name} says is padding{together} reads NaN: all its scores are hidden, though its keys are "
            "real, and the next layer and all gradients get it"
        )
        yield Finding("violation", "padded-queries-read", "mask", message, evidence.base.instance.scores_location)
        return


def _outputs(invocation: Invocation, masks: dict[str, Tensor]) -> Sequence[Tensor]:
    """What is returned beside some masks; nothing where it cannot run with them."""
    called = replace(invocation, arguments={**invocation.arguments, **masks})
    try:
        return [each for each in called.outputs(called.run()) if each.ndim > 1]
    except (Failed, IndexError):
        return []
