"""Weights of one for the largest of a softmax: a hard choice, whose gradient is the softmax's (straight-through)."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.table import AttentionTable

__all__ = ["hard_weights"]

TOLERANCE = 1e-6


def hard_weights(evidence: Evidence) -> Finding | None:
    """That of each row of the softmax the largest alone has a weight; None of all other weights.

    Of a row over the keys that weight is 1 (Xu et al. 2015, "Show, Attend and Tell", section 4.1). Of a row over the
    queries each key is one query's, and the keys of a query have weights that are alike (GroupViT, arXiv:2202.11094,
    section 3.2; Jang et al. 2017, "Categorical Reparameterization with Gumbel-Softmax", section 2.2).
    """
    if not all(_is_largest_kept(each) for each in (evidence.base, evidence.fresh)):
        return None
    are_over_keys = _are_over_keys(evidence.base)
    if not all(_are_alike(each, are_over_keys=are_over_keys) for each in (evidence.base, evidence.fresh)):
        return None
    message = (
        "a query reads the one key whose softmax is the largest (hard attention)"
        if are_over_keys
        else "a key is read by the one query whose softmax is the largest (hard assignment)"
    )
    return Finding("design", "hard-weights", "weights", message, evidence.base.instance.sums_location)


def _is_largest_kept(table: AttentionTable) -> bool:
    """Whether the largest of each row of the softmax has a weight, and nothing else."""
    if not len(table.group) or bool((table.group < 0).any()) or int(table.group.bincount().max()) < 2:
        return False
    largest = torch.zeros(int(table.group.max()) + 1, dtype=table.softmax.dtype)
    largest = largest.scatter_reduce(0, table.group, table.softmax, "amax")
    return torch.equal(table.weight > TOLERANCE, table.softmax == largest[table.group])


def _are_over_keys(table: AttentionTable) -> bool:
    """Whether the scores of each row of the softmax are of one weighted sum."""
    scores = table.values.score
    used, number = scores >= 0, torch.arange(len(scores))[:, None].expand(scores.shape)
    of_sum = torch.zeros(len(table.weight), dtype=torch.long).scatter_reduce(0, scores[used], number[used], "amax")
    least, most = (
        torch.zeros(int(table.group.max()) + 1, dtype=torch.long).scatter_reduce(
            0, table.group, of_sum, end, include_self=False
        )
        for end in ("amin", "amax")
    )
    return torch.equal(least, most)


def _are_alike(table: AttentionTable, *, are_over_keys: bool) -> bool:
    """Whether the weights of a query that are not zero are one number, and 1 where each query has one key."""
    weights = torch.where(table.values.score >= 0, table.values.weight, 0.0)
    most = weights.amax(-1, keepdim=True) if not are_over_keys else 1.0
    return bool(((weights <= TOLERANCE) | ((weights - most).abs() <= TOLERANCE)).all())
