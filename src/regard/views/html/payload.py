"""What the rows of a head are computed from in a page: queries, keys, values, and what is done to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.attention.bias import PositionBias
from regard.attention.mask import Mask
from regard.attention.mask.geometry import Tile
from regard.lens.maps.map import AttentionMap
from regard.views.html.codec import Numbers, Ref, packed
from regard.views.html.quantization import Fineness

__all__ = ["WHOLE", "Carrier", "beside", "cannot"]

WHOLE = 2**22
"""So many weights a page computes at once (static/core/data.js); of larger maps it is given norms and margins."""

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
        fineness: of its map.
        numbers: of the page.
        bound: how far the page's weights may be from the exact ones.
        rows: which queries to carry; all if not given.
        values: whether to carry the values.
    """

    def __init__(
        self, fineness: Fineness, numbers: Numbers, bound: float, rows: Tensor | None = None, *, values: bool = True
    ) -> None:
        self.m, self.fineness, self.numbers, self.bound, self.rows = fineness.m, fineness, numbers, bound, rows
        self.v = fineness.v if values else None
        self.kv: list[dict[str, Ref | None]] = []
        self._places: dict[int, int] = {}
        self._steps = fineness.steps(bound).tolist()
        self._asked: tuple[Tensor, Tensor, Tensor] | None = None

    def head(self, head: int) -> dict[str, object]:
        """What static/core/data.js calls Carried.

        Args:
            head: its place in the map.
        """
        m, numbers, rows = self.m, self.numbers, self.rows
        kv = head // self.fineness.group
        if kv not in self._places:
            v = None if self.v is None else numbers.short(self.v[kv], self.fineness.value_step(kv, self.bound))
            self._places[kv] = len(self.kv)
            self.kv.append({"k": numbers.short(m.k[0, kv], self._steps[kv]), "v": v})
        q = m.q[0, head]
        bias, may = bias_of(m, head), bits_of(m, head)
        return {
            "q": numbers.short(q if rows is None else q[rows], self._steps[kv]),
            "kv": self._places[kv],
            "rows": None if rows is None else numbers.whole(rows),
            **self._margins(head),
            "sink": None if m.sinks is None else float(m.sinks[head]),
            "bias": None if bias is None else numbers.fine(bias),
            "bits": None if may is None else numbers.bits(may),
        }

    def ranges(self) -> tuple[Ref | None, Ref | None]:
        """For each query the first key that it may attend to and the one behind the last, where that is the mask."""
        found = _ranges(self.m)
        return (None, None) if found is None else (self.numbers.whole(found[0]), self.numbers.whole(found[1]))

    def _margins(self, head: int) -> dict[str, Ref | None]:
        """What the page does not compute of a large map by itself: the rows' norms and entropy, what keys received."""
        m, rows = self.m, self.rows
        if rows is None and m.shape[2] * m.shape[3] <= WHOLE:
            return dict.fromkeys(("lse", "entropy", "received"))
        if self._asked is None:
            self._asked = self.fineness.norms(self.bound), m.entropy()[0], m.received()[0]
        lse, entropy, received = (t[head] for t in self._asked)
        fine = self.numbers.fine
        return {"lse": fine(lse if rows is None else lse[rows]), "entropy": fine(entropy), "received": fine(received)}


def cannot(m: AttentionMap) -> str | None:
    """Why a page cannot carry any head of a map whole; None where it can."""
    queries, keys = m.shape[2:]
    if queries * keys > PAIRS and m.mask is not None and _ranges(m) is None:
        return f"a mask that is no range of keys, {queries:,} x {keys:,} bits"
    if m.bias is None or _by_distance(m) is not None:
        return None
    each = f"a bias of its own for each of {queries:,} x {keys:,} pairs"
    if queries * keys > PAIRS or (bias := _table(m)) is None:
        return each
    if queries * keys > BIASES and any((own := bias_of(m, h)) is not None and own.ndim > 1 for h in range(m.shape[1])):
        return each
    low = bias <= NOTHING
    if bool((low & (bias > -torch.inf)).any()) and bool(low.expand(*low.shape[:-1], keys).all(-1).any()):
        return f"a bias below {NOTHING:,.0f} on all keys of a query, in which its scores are lost"
    return None


def beside(m: AttentionMap) -> float:
    """About how many bytes a head takes beside its queries, keys and values: for its mask and its bias."""
    numbers, table = Numbers(), _table(m)
    own = table is not None and table.ndim > 2 and table.shape[-3] > 1
    may, bias = bits_of(m, 0), bias_of(m, 0)
    sizes = [0.0]
    if may is not None:
        numbers.bits(may)
        every = own or (m.mask is not None and m.mask.batch_heads(*m.shape[2:])[1] is not None)
        sizes.append(len(packed(numbers.bytes())) / (1 if every else m.shape[1]))
    if bias is not None:
        numbers = Numbers()
        numbers.fine(bias)
        sizes.append(len(packed(numbers.bytes())) / (1 if own or table is None else m.shape[1]))
    return sum(sizes)


def bits_of(m: AttentionMap, head: int) -> Bool[Tensor, "queries keys"] | None:
    """Which keys each query of a head may attend to; None where that is a range, or all of them.

    A bias that is far below all scores is a mask.
    """
    table, low = _table(m), None
    if table is not None:
        low = _of_head(table, head) <= NOTHING
        low = low if bool(low.any()) else None
    if low is None and (m.mask is None or _ranges(m) is not None):
        return None
    may = torch.ones(m.shape[2:], dtype=torch.bool, device=m.device)
    if m.mask is not None:
        may = may & _of_head(m.mask.broadcastable(*m.shape[2:], device=m.device), head)
    return may if low is None else may & ~low


def bias_of(m: AttentionMap, head: int) -> Tensor | None:
    """The bias of a head by key - query, from -(queries - 1) on; where that does not say it, (queries, keys)."""
    if (by_distance := _by_distance(m)) is not None:
        return by_distance[head]
    if (table := _table(m)) is None:
        return None
    queries, keys = m.shape[2:]
    own = _of_head(table, head).double().expand(queries, keys)
    low = own <= NOTHING
    at = torch.arange(keys, device=m.device) - torch.arange(queries, device=m.device)[:, None] + queries - 1
    by_distance = own.new_full((queries + keys - 1,), -torch.inf)
    by_distance.scatter_reduce_(0, at.flatten(), own.flatten(), "amax")
    same = bool(((by_distance[at] == own) | low).all())
    said = by_distance if same else own
    said = said.masked_fill(said <= NOTHING, 0.0)
    return said if bool(said.any()) else None


def _ranges(m: AttentionMap) -> tuple[Tensor, Tensor] | None:
    """First key and the one behind the last of each query, the same for all heads; None where a mask is not that."""
    if m.mask is None:
        return None
    if "ranges" not in m.answer_cache:
        m.answer_cache["ranges"] = _found_ranges(m.mask, m.shape[2], m.shape[3], m.device)
    return m.answer_cache["ranges"]  # type: ignore[no-any-return]


def _found_ranges(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    low, high = [], []
    rows = max(1, AT_ONCE // max(1, keys))
    for top in range(0, queries, rows):
        end = min(top + rows, queries)
        may = mask.evaluate(Tile(queries, keys, (top, end), (0, keys), device))
        if any(size > 1 for size in may.shape[:-2]):
            return None
        may = may.reshape(may.shape[-2:]).expand(end - top, keys)
        count = may.sum(-1)
        first = may.to(torch.uint8).argmax(-1)
        last = keys - may.flip(-1).to(torch.uint8).argmax(-1)
        if bool(((last - first != count) & (count > 0)).any()):
            return None
        low.append(first.masked_fill(count == 0, 0))
        high.append(last.masked_fill(count == 0, 0))
    return torch.cat(low), torch.cat(high)


def _table(m: AttentionMap) -> Tensor | None:
    """The bias of each pair, broadcastable to (batch, heads, queries, keys); None where the distance says it all."""
    if not isinstance(m.bias, PositionBias):
        return m.bias
    if _by_distance(m) is not None:
        return None
    if "table" not in m.answer_cache:
        m.answer_cache["table"] = m.bias.dense(*m.shape[2:], device=m.device).to(m.dtype)
    return m.answer_cache["table"]  # type: ignore[no-any-return]


def _by_distance(m: AttentionMap) -> Tensor | None:
    """The bias by key - query, (heads, queries + keys - 1), from -(queries - 1) on; None where it is something else."""
    if not isinstance(m.bias, PositionBias):
        return None
    if "by distance" not in m.answer_cache:
        found = _found_by_distance(m.bias, m.shape[2], m.shape[3], m.device)
        m.answer_cache["by distance"] = None if found is None else found.to(m.dtype)  # as it joins the scores
    return m.answer_cache["by distance"]  # type: ignore[no-any-return]


def _found_by_distance(bias: PositionBias, queries: int, keys: int, device: torch.device) -> Tensor | None:
    key = torch.arange(keys, device=device)

    def row(query: int) -> Tensor:
        return bias(torch.tensor([query + keys - queries], device=device), key)[:, 0]  # type: ignore[no-any-return]

    out: Tensor = row(0).new_zeros(bias.num_heads, queries + keys - 1)
    for query in [*range(0, queries, keys), queries - 1]:
        out[:, queries - 1 - query :][:, :keys] = row(query)
    # A bias that is no function of the distance differs between the rows.
    others = {queries // 3, queries // 2, 2 * queries // 3, queries - 1}
    same = all(torch.allclose(out[:, queries - 1 - query :][:, :keys], row(query)) for query in others)
    return out if same and bool(out.isfinite().all()) else None


def _of_head(t: Tensor, head: int) -> Tensor:
    """The (queries, keys) of a head, of something that broadcasts over batch rows and heads."""
    t = t.reshape((1,) * (4 - t.ndim) + tuple(t.shape))
    return t[0, head if t.shape[1] > 1 else 0]
