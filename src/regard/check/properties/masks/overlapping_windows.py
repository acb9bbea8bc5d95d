"""Attention within windows that overlap: a token asks once in each that it stands in."""

from __future__ import annotations

from collections import Counter

from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.table import AttentionTable

__all__ = ["overlapping_windows"]


def overlapping_windows(table: AttentionTable) -> int:
    """The number of tokens of such a window; 0 of all other attention.

    In each, every token asks all of its tokens, and nothing is blocked. Tokens stand in some windows or in more.
    """
    if bool((table.group < 0).any()) or bool((table.weight.abs() <= ZERO_WEIGHT).any()) or not table.whole:
        return 0
    tokens = [each.tolist() for each in (table.group, table.query.sample, table.query.token, table.key.token)]
    seen: dict[int, set[int]] = {}
    asking: dict[int, tuple[int, int]] = {}
    for row, sample, query, key in zip(*tokens, strict=True):
        seen.setdefault(row, set()).add(key)
        asking[row] = (sample, query)
    windows: Counter[tuple[int, frozenset[int], int]] = Counter()
    for row, (sample, query) in asking.items():
        windows[sample, frozenset(seen[row]), query] += 1
    sizes = {len(keys) for _, keys, _ in windows}
    counts = Counter(asking.values())
    if len(sizes) != 1 or len(set(counts.values())) == 1:
        return 0
    are_whole = all(windows[sample, keys, each] == many for (sample, keys, _), many in windows.items() for each in keys)
    return sizes.pop() if are_whole and all(query in keys for _, keys, query in windows) else 0
