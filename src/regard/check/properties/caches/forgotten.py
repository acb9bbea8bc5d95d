"""Caches that are returned without what was in them: the next call reads the newest tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target.cache_runs import CachedCall
from regard.check.target.cache_search import tensors_in
from regard.check.target.errors import Failed

__all__ = ["forgotten_past"]


def forgotten_past(call: CachedCall, prefix: int, instances: Sequence[AttentionInstance]) -> Finding | None:
    """A cache that holds the first tokens after their call, and after each later one its new token alone.

    Whatever positions and masks the later ones needed: how many tokens a cache holds does not depend on them. A window,
    which drops old tokens on purpose, holds as many as before.

    Args:
        call: with its cache.
        prefix: how many tokens the first call is given.
        instances: the attentions of the call without a cache.
    """
    cuts = [(0, prefix), (prefix, prefix + 1), (prefix + 1, prefix + 2)]
    if call.from_first or not call.form.arguments or prefix < 2 or cuts[-1][1] > call.tokens:
        return None
    try:
        first, *later = [list(tensors_in(state)) for _, state in call.parts(cuts)]
    except (Failed, RuntimeError, IndexError, ValueError):
        return None
    if not first or not all(_holds_one(first, each, prefix) for each in later):
        return None
    message = (
        f"what is kept of the keys and values are {prefix} tokens after the first call, and the new one alone after "
        "each later call: those before it are lost"
    )
    line = instances[0].scores_location if instances else None
    return Finding("violation", "cache-of-new-tokens", "k", message, line)


def _holds_one(first: Sequence[Tensor], later: Sequence[Tensor], prefix: int) -> bool:
    """Whether every tensor of a later cache has one place, along the axis where that of the first tokens has theirs."""
    return len(first) == len(later) and all(
        one.ndim == other.ndim
        and [each for each in zip(one.shape, other.shape, strict=True) if each[0] != each[1]] == [(prefix, 1)]
        for one, other in zip(first, later, strict=True)
    )
