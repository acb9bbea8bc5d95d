"""A cache that keeps the last tokens alone: where it is full, positions still go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from regard.check.properties.caches.comparison import PartOfWhole, place_of, recorded, same_tensor
from regard.check.properties.finding import Finding
from regard.check.roles.instances import AttentionInstance
from regard.check.target.cache_runs import CachedCall

__all__ = ["full_cache_findings"]

ROOM = re.compile(r"budget|window|capacity|room|keep|limit|max|size|len", re.I)
"""Names of attributes that say how many tokens a cache keeps."""
KEPT = 2
"""Tokens that it is told to keep."""


def full_cache_findings(call: CachedCall, instances: list[AttentionInstance]) -> Iterator[Finding]:
    """Scores of the tokens that are kept, which are others than all at once, after the cache dropped some.

    Rotated at the number of tokens that are kept, and not of those that were seen, new keys and queries all stand at
    one position. Where keys are rotated anew at their places in the cache, their distances are those of all at once.

    Args:
        call: with a cache that is an object, right for one new token at a time while all are kept.
        instances: the attentions of the call without a cache.

    Raises:
        Failed: it raised.
    """
    if len(instances) != 1:
        return  # what the next one reads has other weights
    end = call.tokens
    whole = recorded(call, [(0, end)])
    cuts = pairwise(range(end + 1))
    for name in _rooms(call.form.make()):
        small = replace(call, form=replace(call.form, make=_with_room(call.form.make, name)))
        runs = PartOfWhole(whole, recorded(small, [*cuts]), end - 1, end)
        if runs.whole.error or runs.part.error:
            return
        instance = instances[0]
        base, total = instance.run.trace, instance.sums[0]
        places = instance.values_place(total), instance.weights_place(total)
        values, weights = (runs.tensors(place_of(base, each)) for each in places)
        if values is None or weights is None or not _are_apart(values, weights, end):
            return
        message = (
            f"where a cache has dropped the first tokens ({name}={KEPT}), token {end - 1} meets those that are left at "
            "other distances than all at once: positions do not go on by the tokens that were seen"
        )
        yield Finding("violation", "cache-positions", "positions", message, instance.scores_location)
        return


def _rooms(cache: Any) -> list[str]:
    """The attributes of an empty cache that may say how many tokens it keeps."""
    own = vars(cache) if hasattr(cache, "__dict__") else {}
    return [name for name, each in own.items() if type(each) is int and each > KEPT and ROOM.search(name)][:1]


def _with_room(make: Callable[[], Any], name: str) -> Callable[[], Any]:
    def small() -> Any:
        cache = make()
        setattr(cache, name, KEPT)
        return cache

    return small


def _are_apart(values: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor], end: int) -> bool:
    """Whether the last values are those of all at once, some are gone, and the weights of the rest have other shares.

    Args:
        values: (..., keys, channels), all at once and with the cache.
        weights: (..., queries, keys).
        end: the number of tokens.
    """
    kept = values[1].shape[-2]
    if not 1 < kept < end or weights[1].shape[-2:] != (1, kept) or weights[0].shape[-2:] != (end, end):
        return False
    if values[0].shape[-2] != end or not same_tensor(values[0][..., -kept:, :], values[1]):
        return False
    one, other = (each[..., -1:, -kept:] for each in weights)
    if not bool((one > 0).all() and (other > 0).all()):
        return False
    return not same_tensor(*(each.log() - each[..., -1:].log() for each in (one, other)))
