"""Pairs of heads that have the same queries, keys or values."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from regard.check.roles.table import AttentionTable

__all__ = ["heads_alike", "pairs_alike", "shared_heads"]


def shared_heads(table: AttentionTable) -> set[tuple[int, int]]:
    """The pairs of heads that have the same keys, and not the same queries: else they are parts of one head."""
    return pairs_alike(table.keys_by_head) - heads_alike(table)


def heads_alike(table: AttentionTable) -> set[tuple[int, int]]:
    """The pairs of heads that have the same queries."""
    return pairs_alike([table.q[table.of_last_query & (table.head == head)] for head in range(table.num_heads)])


def pairs_alike(of_heads: list[Tensor]) -> set[tuple[int, int]]:
    """The pairs of heads that have the same numbers."""
    same: dict[tuple[torch.Size, bytes], list[int]] = {}
    for head, numbers in enumerate(of_heads):
        if numbers.numel():
            # Adding 0 makes one number of 0 and -0.
            same.setdefault((numbers.shape, (numbers + 0).numpy().tobytes()), []).append(head)
    return {pair for heads in same.values() for pair in itertools.combinations(heads, 2)}
