"""Queries in groups: windows that see a margin around them too (HaloNet, Vaswani et al. 2021), or keys of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.roles.table import AttentionTable

__all__ = [
    "are_blocks_beside_others",
    "are_groups",
    "are_windows_with_a_halo",
    "is_last_segment",
    "rows_of_a_later_step",
]


def are_windows_with_a_halo(allowed: Tensor) -> bool:
    """Whether the tokens, or those of some grid, are cut into equal windows, each with the same margin on every side.

    A margin ends where the tokens end.

    Args:
        allowed: (queries, keys), as many keys as queries.
    """
    tokens = len(allowed)
    _, windows = torch.unique(allowed, dim=0, return_inverse=True)
    count = int(windows.max()) + 1
    if not 1 < count < tokens:
        return False
    of_windows = [windows == each for each in range(count)]
    seen = [allowed[each][0] for each in of_windows]
    widths = [each for each in range(2, tokens + 1) if tokens % each == 0]
    return any(_have_one_margin(of_windows, seen, width) for width in widths)


def are_groups(allowed: Tensor) -> bool:
    """Whether several groups of as many queries each see as many keys each, all keys of theirs and no others."""
    groups, sizes = torch.unique(allowed, dim=0, return_counts=True)
    counts = {len(sizes) > 1, len({*sizes.tolist()}) == 1, len({*groups.sum(1).tolist()}) == 1}
    return counts == {True} and int(sizes[0]) > 1 and bool((groups.sum(0) == 1).all())


def are_blocks_beside_others(allowed: Tensor, asking: Tensor) -> bool:
    """Whether the tokens that ask are cut into blocks, all of which see the tokens that ask elsewhere.

    As the places of a video, in each of which frames see one another, beside tokens that see all (TimeSformer).

    Args:
        allowed: (queries, keys): which keys have a weight.
        asking: the tokens that ask.
    """
    if len(allowed) != allowed.shape[-1]:
        return False
    asks = torch.zeros(len(allowed), dtype=torch.bool).index_fill(0, asking, True)
    among = allowed[asks][:, asks]
    are_blocks = bool(among.diagonal().all()) and torch.equal(among.int() @ among.int() > 0, among & among.t())
    return are_blocks and not bool(asks.all()) and bool(allowed[asks][:, ~asks].all())


def is_last_segment(allowed: Tensor, asking: Tensor) -> bool:
    """Whether the last tokens alone ask, and see one another and nothing before them, as a segment cut out of a text.

    Args:
        allowed: (queries, keys): which keys have a weight.
        asking: the tokens that ask.
    """
    tokens, asks = len(allowed), set(asking.tolist())
    first = min(asks, default=0)
    is_last = 0 < first < tokens - 1 and asks == {*range(first, tokens)}
    if tokens != allowed.shape[-1] or not is_last:
        return False
    return bool(allowed[first:, first:].all()) and not bool(allowed[first:, :first].any())


def rows_of_a_later_step(table: AttentionTable, allowed: Tensor) -> Tensor | None:
    """The rows of the last tokens alone, where those before them ask in an earlier step of a loop; None elsewhere.

    As where a text is read in pieces, each of which asks the pieces before it and itself.

    Args:
        table: of the attention.
        allowed: (queries, keys): which keys have a weight.
    """
    tokens, instance = len(allowed), table.instance
    first = min(set(table.query.token.tolist()), default=0)
    is_last = set(table.query.token.tolist()) == {*range(first, tokens)}
    if tokens != allowed.shape[-1] or not is_last or first == 0 or not instance.scores:
        return None
    if not bool(allowed.diagonal()[first:].all()):
        return None  # those that ask do not see themselves either
    begin = min(each.operation.index for each in instance.scores)
    lines = {(each.operation.name, each.operation.location) for each in instance.scores}
    is_later = any((each.name, each.location) in lines for each in instance.run.trace.operations[:begin])
    return allowed[first:] if is_later else None


def _have_one_margin(windows: list[Tensor], seen: list[Tensor], width: int) -> bool:
    """The same for a grid of a width; of a single row for a sequence."""
    sizes, whole, cut = set[tuple[int, int]](), set[int](), {0}
    for window, keys in zip(windows, seen, strict=True):
        inner, outer = (_rectangle(each.view(-1, width)) for each in (window, keys))
        if inner is None or outer is None:
            return False
        (top, bottom, left, right), (first, last, begin, end) = inner, outer
        sizes.add((bottom - top, right - left))
        before = ((top - first, first), (left - begin, begin))
        after = ((last - bottom, len(window) // width - 1 - last), (end - right, width - 1 - end))
        for margin, beyond in (*before, *after):
            (whole if beyond else cut).add(margin)
    return len(sizes) == len(whole) == 1 and min(whole) > 0 and max(cut) <= min(whole)


def _rectangle(chosen: Tensor) -> tuple[int, int, int, int] | None:
    """The first and last row, and the first and last column, of a whole rectangle; None of another set of places."""
    rows, columns = (chosen.any(axis).nonzero().flatten() for axis in (1, 0))
    if not len(rows):
        return None
    top, bottom, left, right = (int(each) for each in (rows[0], rows[-1], columns[0], columns[-1]))
    is_whole = bool(chosen[top : bottom + 1, left : right + 1].all())
    return (top, bottom, left, right) if is_whole else None
