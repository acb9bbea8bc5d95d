"""How much of a recording a page has room for: which heads it carries whole, and how finely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from regard.lens.map import AttentionMap
from regard.views.page.carried import WHOLE
from regard.views.page.fineness import BOUNDS, COARSEST, Fineness

__all__ = ["Plan", "Wanted", "planned"]

TEXT = 8 / 7 * 1.015
"""So many bytes of a page hold a byte of what it carries (`codec.seven_bits`), and gzip packs so well."""

MARGINS = 12
"""Bytes for each query or key of a large map: its norm, its entropy, what it received."""

FEWEST = 16
"""With fewer rows than that a head is not carried."""

Wanted = tuple[int, int]
"""An attention and a head, by their places."""


@dataclass
class Plan:
    """What a page carries whole."""

    bound: float = COARSEST
    """How far its weights may be from the exact ones."""
    heads: list[Wanted] = field(default_factory=list)
    """In the order in which they are wanted."""
    values: bool = True
    """Whether their values are carried too."""
    rows: Tensor | None = None
    """Which queries of the one head are carried, where there is no room for all."""


def planned(finenesses: dict[int, Fineness], order: Sequence[Wanted], room: float) -> Plan:
    """The finest that has room: every head, or as many as fit; else one without its values, or some rows of it.

    Args:
        finenesses: of each attention that can be carried.
        order: the heads that are wanted, the first first.
        room: how many bytes of the page are left.
    """
    order = [wanted for wanted in order if wanted[0] in finenesses]
    if not order:
        return Plan()
    for bound in BOUNDS:
        sizes = _Sizes(finenesses, bound)
        heads = sizes.fitting(order, room)
        if len(heads) == len(order):
            return Plan(bound, heads)
    if heads:
        return Plan(COARSEST, heads)
    first = order[0]
    bare = _Sizes(finenesses, COARSEST, values=False)
    if bare.fitting([first], room):
        return Plan(COARSEST, [first], values=False)
    m = finenesses[first[0]].m
    queries = m.shape[2]
    left = room - bare.shared(first)
    rows = int(queries * left / max(bare.own(first), 1))
    if left <= 0 or rows < FEWEST:
        return Plan()
    return Plan(COARSEST, [first], values=False, rows=_rows_that_matter(m, first[1], rows))


class _Sizes:
    """What heads cost, in bytes of a page."""

    def __init__(self, finenesses: dict[int, Fineness], bound: float, *, values: bool = True) -> None:
        self.values = values
        self.of = {place: (fineness, *fineness.sizes(bound)) for place, fineness in finenesses.items()}

    def own(self, wanted: Wanted) -> float:
        """The queries of a head, and what is told of each of its rows."""
        fineness, queries, _, _ = self.of[wanted[0]]
        m = fineness.m
        large = m.shape[2] * m.shape[3] > WHOLE
        return TEXT * (queries[wanted[1]] + (MARGINS * m.shape[2] if large else 0))

    def shared(self, wanted: Wanted) -> float:
        """The keys and values that a head looks at, maybe with others."""
        fineness, _, keys, values = self.of[wanted[0]]
        kv = wanted[1] // fineness.group
        return TEXT * (keys[kv] + (values[kv] if self.values else 0))

    def fitting(self, order: Sequence[Wanted], room: float) -> list[Wanted]:
        """The heads, from the first on, for which there is room."""
        fits: list[Wanted] = []
        there: set[Wanted] = set()
        for wanted in order:
            kv = (wanted[0], wanted[1] // self.of[wanted[0]][0].group)
            room -= self.own(wanted) + (0 if kv in there else self.shared(wanted))
            if room < 0:
                break
            there.add(kv)
            fits.append(wanted)
        return fits


def _rows_that_matter(m: AttentionMap, head: int, count: int) -> Tensor:
    """The rows that look at the fewest keys, and the last, which has read everything."""
    entropy = m.entropy()[0, head].clone()
    entropy[-1] = -1
    return entropy.topk(min(count, len(entropy)), largest=False).indices.sort().values.cpu()
