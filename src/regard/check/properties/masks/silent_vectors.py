"""Queries of which an activation makes zeros: all keys have the same weight of them, and no mask hides these."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.check.roles.silent_owners import is_behind_an_activation
from regard.check.roles.table import AttentionTable

__all__ = ["silent_queries"]


def silent_queries(tables: Sequence[AttentionTable], rows: Tensor | None = None) -> Tensor:
    """(samples, heads, queries): which have the product 0 with all keys in each of some runs, by an activation.

    Args:
        tables: of one attention in these runs; the first one tells who is who.
        rows: of the scores that are looked at; all where it is None.
    """
    silent = torch.stack([(tables[0].dense(each.product, 0.0, rows) == 0).all(-1) for each in tables]).all(0)
    instance = tables[0].instance
    places = [place for each in instance.scores for place in each.places]
    is_bent = bool(silent.any()) and any(is_behind_an_activation(instance.run.trace, place) for place in places)
    return silent if is_bent else torch.zeros_like(silent)
