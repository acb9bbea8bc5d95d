"""The smallest input for which a property is violated: what a reader can follow by hand."""

from __future__ import annotations

import itertools

from torch import Tensor

from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.properties.token_ids import PADDED
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.sizes import Sizes
from regard.check.time_limit import is_over

__all__ = ["smallest_input"]

SMALL_SIZES = sorted(
    (
        Sizes(batch=batch, tokens=tokens, context=tokens + 1, heads=heads, kv_heads=heads, d_head=d_head)
        for batch, tokens, heads, d_head in itertools.product((1, 2), (2, 3, 4), (1, 2), (2, 4))
    ),
    key=lambda sizes: sizes.batch * sizes.tokens * sizes.d_model,
)
OF_MORE_TOKENS = frozenset({"window-as-documented"})
"""Properties that are seen with more tokens than the call has: its size says nothing of them."""
LEAST_TOKENS = {"padding-by-ids": PADDED + 2}
"""Tokens below which a property is not held against a call: no smaller one is worth an analysis."""
MAX_ANALYSES = 16
"""After which no smaller input is looked for; the first ones, the smallest, take the least."""
MAX_OPERATIONS = 800
"""Of the calls that these judge: of a model fewer are looked at."""


def smallest_input(analysis: Analysis, violated: str) -> str:
    """The shapes of the smallest input found, such as "x (1, 2, 4)".

    Args:
        analysis: of a call for which the property is violated.
        violated: the property's name.

    Returns:
        The shapes; empty where none was looked for.
    """
    if violated in OF_MORE_TOKENS:
        return ""
    whole = _numel(analysis.invocation)
    enough = [each for each in SMALL_SIZES if each.tokens >= LEAST_TOKENS.get(violated, 0)]
    smaller = (each for sizes in enough for each in analysis.invocation.resized(sizes) if _numel(each) < whole)
    count = MAX_OPERATIONS // max(1, len(record_invocation(analysis.invocation)))
    for invocation in itertools.islice(smaller, max(1, min(MAX_ANALYSES, count))):
        if is_over():
            break  # what was found is told before the process is stopped
        try:
            found = analyze(invocation, masks=analysis.asked_masks, is_first=analysis.is_first)
        except (RuntimeError, IndexError, ValueError):
            continue  # so small that what is compared is not there
        if any(each.property == violated for each in found.violations):
            return _shapes(invocation)
    return _shapes(analysis.invocation)


def _streams(invocation: Invocation) -> dict[str, Tensor]:
    return {each.argument: invocation.arguments[each.argument] for each in invocation.streams}


def _numel(invocation: Invocation) -> int:
    return sum(each.numel() for each in _streams(invocation).values())


def _shapes(invocation: Invocation) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in _streams(invocation).items())
