"""What the rows of a head are computed from in a page: queries, keys, values, and what is done to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.mask.algebra import Area
from regard.lens.map import AttentionMap
from regard.views.page.codec import Numbers, Ref
from regard.views.page.fineness import Fineness

__all__ = ["WHOLE", "Carrier", "cannot"]

WHOLE = 2**22
"""So many weights a page computes at once (static/data.js); of larger maps it is given norms and margins."""

PAIRS = 2**24
"""A mask that is no range of keys for each query takes a bit for each pair, up to so many pairs."""

BIASES = 2**20
"""A bias that is no function of the distance takes a number for each pair, up to so many pairs."""

NOTHING = -1e4
"""A bias below it is a mask."""

AT_ONCE = 2**24
"""So many pairs of a mask stand in memory at once."""


class Carrier:
    """Puts one attention of one text among the numbers of a page.

    Args:
        m: its map, of one batch row.
        numbers: of the page.
        bound: how far the page's weights may be from the exact ones.
        fineness: of the map.
    """

    def __init__(self, m: AttentionMap, numbers: Numbers, bound: float, fineness: Fineness) -> None:
        self.m, self.numbers, self.bound, self.fineness = m, numbers, bound, fineness
        self.kv: list[dict[str, Ref | None]] = []
        self._places: dict[int, int] = {}
        self._steps = fineness.steps(bound).tolist()
        self._asked: tuple[Tensor, Tensor, Tensor] | None = None

    def head(self, head: int, rows: Tensor | None = None, *, values: bool = True) -> dict[str, object]:
        """What static/data.js calls Carried.

        Args:
            head: its place in the map.
            rows: which queries to carry; all if not given.
            values: whether to carry the values.
        """
        m, numbers = self.m, self.numbers
        kv = head // self.fineness.group
        if kv not in self._places:
            v = m.v if values else None
            self._places[kv] = len(self.kv)
            self.kv.append(
                {
                    "k": numbers.short(m.k[0, kv], self._steps[kv]),
                    "v": None if v is None else numbers.short(v[0, kv], self.fineness.value_step(kv, self.bound)),
                }
            )
        q = m.q[0, head]
        sink = None if m.sinks is None else float(m.sinks[head])
        return {
            "q": numbers.short(q if rows is None else q[rows], self._steps[kv]),
            "kv": self._places[kv],
            "rows": None if rows is None else numbers.whole(rows),
            **self._margins(head, rows),
            "sink": sink,
            "bias": self._bias(head),
            "bits": self._bits(head),
        }

    def ranges(self) -> tuple[Ref | None, Ref | None]:
        """For each query the first key that it may attend to and the one behind the last, where that is the mask."""
        found = None if self.m.mask is None else _ranges(self.m.mask, self.m)
        return (None, None) if found is None else (self.numbers.whole(found[0]), self.numbers.whole(found[1]))

    def _margins(self, head: int, rows: Tensor | None) -> dict[str, Ref | None]:
        """What the page does not compute of a large map by itself: the rows' norms and entropy, what keys received."""
        m = self.m
        if rows is None and m.shape[2] * m.shape[3] <= WHOLE:
            return dict.fromkeys(("lse", "entropy", "received"))
        if self._asked is None:
            self._asked = self.fineness.norms(self.bound), m.entropy()[0], m.received()[0]
        lse, entropy, received = (t[head] for t in self._asked)
        fine = self.numbers.fine
        return {"lse": fine(lse if rows is None else lse[rows]), "entropy": fine(entropy), "received": fine(received)}

    def _bits(self, head: int) -> Ref | None:
        mask = self.m.mask
        blocked = None
        if isinstance(self.m.bias, Tensor):
            bias = _of_head(self.m.bias, head)
            blocked = bias <= NOTHING if bool((bias <= NOTHING).any()) else None
        if blocked is None and (mask is None or _ranges(mask, self.m) is not None):
            return None
        queries, keys = self.m.shape[2:]
        may = torch.ones(queries, keys, dtype=torch.bool)
        if mask is not None:
            may = _of_head(mask.broadcastable(queries, keys), head).expand(queries, keys).cpu()
        return self.numbers.bits(may if blocked is None else may & ~blocked.expand(queries, keys).cpu())

    def _bias(self, head: int) -> Ref | None:
        bias = self.m.bias
        if bias is None:
            return None
        queries, keys = self.m.shape[2:]
        if isinstance(bias, PositionBias):
            by_distance = _by_distance(bias, queries, keys, self.m.device)
            if by_distance is not None:
                return self.numbers.fine(by_distance[head])
            return self.numbers.fine(bias.dense(queries, keys, device=self.m.device)[head])
        own = _of_head(bias, head).double()
        return self.numbers.fine(own.masked_fill(own <= NOTHING, 0.0).expand(queries, keys))


def cannot(m: AttentionMap) -> str | None:
    """Why a page cannot carry any head of a map whole; None where it can."""
    queries, keys = m.shape[2:]
    if m.mask is not None and queries * keys > PAIRS and _ranges(m.mask, m) is None:
        return f"a mask that is no range of keys, {queries:,} x {keys:,} bits"
    dense = isinstance(m.bias, Tensor) or (
        m.bias is not None and queries * keys > BIASES and _by_distance(m.bias, queries, keys, m.device) is None
    )
    if dense and queries * keys > BIASES:
        return f"a bias of its own for each of {queries:,} x {keys:,} pairs"
    return None


def _ranges(mask: Mask, m: AttentionMap) -> tuple[Tensor, Tensor] | None:
    """First key and the one behind the last of each query, the same for all heads; None where a mask is not that."""
    if "ranges" not in m.known:
        m.known["ranges"] = _found_ranges(mask, m.shape[2], m.shape[3], m.device)
    return m.known["ranges"]  # type: ignore[no-any-return]


def _found_ranges(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    low, high = [], []
    rows = max(1, AT_ONCE // max(1, keys))
    for top in range(0, queries, rows):
        end = min(top + rows, queries)
        may = mask.tile(Area(queries, keys, (top, end), (0, keys), device))
        if any(size > 1 for size in may.shape[:-2]):
            return None
        may = may.reshape(may.shape[-2:]).expand(end - top, keys)
        count = may.sum(-1)
        first = may.int().argmax(-1)
        last = keys - may.flip(-1).int().argmax(-1)
        empty = count == 0
        if bool(((last - first != count) & ~empty).any()):
            return None
        low.append(first.masked_fill(empty, 0))
        high.append(last.masked_fill(empty, 0))
    return torch.cat(low), torch.cat(high)


def _by_distance(bias: PositionBias, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """The bias by key - query, (heads, queries + keys - 1), from -(queries - 1) on; None where it is something else."""
    first, key = keys - queries, torch.arange(keys, device=device)
    row = bias(torch.tensor([first], device=device), key)[:, 0]
    out: Tensor = row.new_zeros(len(row), queries + keys - 1)
    for query in [*range(0, queries, keys), queries - 1]:
        start = queries - 1 - query
        out[:, start : start + keys] = bias(torch.tensor([query + first], device=device), key)[:, 0]
    for query in {queries // 3, queries // 2, queries - 1}:
        start = queries - 1 - query
        own = bias(torch.tensor([query + first], device=device), key)[:, 0]
        if not torch.allclose(out[:, start : start + keys], own):
            return None
    return out


def _of_head(t: Bool[Tensor, "..."] | Tensor, head: int) -> Tensor:
    """The (queries, keys) of a head, of something that broadcasts over batch rows and heads."""
    t = t.reshape((1,) * (4 - t.ndim) + tuple(t.shape))
    return t[0, head if t.shape[1] > 1 else 0]
