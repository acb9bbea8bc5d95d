"""How much of a recording a page has room for: which heads it carries whole, and how finely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.lens.maps.map import AttentionMap
from regard.views.html.payload import WHOLE, beside
from regard.views.html.quantization import BOUNDS, COARSEST, Fineness

__all__ = ["Plan", "Wanted", "planned"]

TEXT = 8 / 7 * 1.055
"""So many bytes of a page hold a byte of what it carries (`codec.seven_bits`); gzip is a little worse than entropy."""

MARGINS = 5
"""Bytes for each query and for each key of a large map: its norm and its entropy; what it received."""

ROW = 8
"""Bytes for each query where some are carried: its number and its norm."""

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
    size: float = 0.0
    """About how many bytes of a page all that takes."""


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
        heads, size = _Sizes(finenesses, bound).fitting(order, room)
        if len(heads) == len(order):
            return Plan(bound, heads, size=size)
    if heads:
        return Plan(COARSEST, heads, size=size)
    first = order[0]
    bare = _Sizes(finenesses, COARSEST, values=False)
    heads, size = bare.fitting([first], room)
    if heads:
        return Plan(COARSEST, heads, values=False, size=size)
    m = finenesses[first[0]].m
    margins = TEXT * MARGINS * sum(m.shape[2:])
    each = bare.row(first)
    rows = int((room - bare.shared(first) - margins) / each)
    if rows < FEWEST:
        return Plan()
    kept = _rows_that_matter(m, first[1], rows)
    return Plan(COARSEST, [first], values=False, rows=kept, size=bare.shared(first) + margins + len(kept) * each)


class _Sizes:
    """What heads cost, in bytes of a page."""

    def __init__(self, finenesses: dict[int, Fineness], bound: float, *, values: bool = True) -> None:
        self.values = values
        self.of = {place: (fineness, *fineness.sizes(bound)) for place, fineness in finenesses.items()}
        self.beside = {place: beside(fineness.m) for place, fineness in finenesses.items()}

    def own(self, wanted: Wanted) -> float:
        """The queries of a head, its mask and its bias, and what is told of each row and key of a large map."""
        fineness, queries, _, _ = self.of[wanted[0]]
        _, _, rows, keys = fineness.m.shape
        margins = MARGINS * (rows + keys) if rows * keys > WHOLE else 0
        return TEXT * (queries[wanted[1]] + self.beside[wanted[0]] + margins)

    def row(self, wanted: Wanted) -> float:
        """One query of a head, its number and its norm."""
        fineness, queries, _, _ = self.of[wanted[0]]
        return TEXT * (queries[wanted[1]] / fineness.m.shape[2] + ROW)

    def shared(self, wanted: Wanted) -> float:
        """The keys and values that a head looks at, maybe with others."""
        fineness, _, keys, values = self.of[wanted[0]]
        kv = wanted[1] // fineness.group
        return TEXT * (keys[kv] + (values[kv] if self.values else 0))

    def fitting(self, order: Sequence[Wanted], room: float) -> tuple[list[Wanted], float]:
        """The heads, from the first on, for which there is room; and how much they take."""
        fits: list[Wanted] = []
        there: set[Wanted] = set()
        taken = 0.0
        for wanted in order:
            kv = (wanted[0], wanted[1] // self.of[wanted[0]][0].group)
            more = self.own(wanted) + (0 if kv in there else self.shared(wanted))
            if taken + more > room:
                break
            taken += more
            there.add(kv)
            fits.append(wanted)
        return fits, taken


def _rows_that_matter(m: AttentionMap, head: int, count: int) -> Tensor:
    """The rows that look at the fewest keys, and the last, which has read everything; not those that look at none."""
    entropy = m.entropy()[0, head]
    entropy = entropy.masked_fill(m.lse[0, head] == -torch.inf, torch.inf)
    entropy[-1] = -1
    return entropy.topk(min(count, len(entropy)), largest=False).indices.sort().values.cpu()
