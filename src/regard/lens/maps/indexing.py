"""A part of a map, by the definition in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan, prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.lens.maps.prepared import to_call

if TYPE_CHECKING:
    from regard.lens.maps.map import AttentionMap, OutputSample

__all__ = ["index_weights", "lse_matches", "max_error"]

CHUNK_SCORES = 2**20
"""About how many scores stand in memory at once."""

PAIRED = 2**10
"""So many elements at a time, where an index names them one by one."""

ROWS, CLOSE = 16, 1e-4
"""So many rows of an lse that was handed over are checked, and so far off they may be."""


class _Exact:
    """Rows of the weights in float64, named one by one."""

    def __init__(self, m: AttentionMap) -> None:
        self.call, self.sinks = to_call(m, m.q.dtype)
        self.k = _Heads(self.call.k, m.shape[1])
        self.key = torch.arange(m.shape[3], device=m.device)
        mask = self.call.mask
        self.sees = None if mask is None else mask.predicate(m.shape[2], m.shape[3], m.device)
        self.at_once = max(1, CHUNK_SCORES // max(1, m.shape[3]))
        """So many rows at a time."""

    def scores(self, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        """What the softmax takes for these batch rows, heads and queries, (n,) each: scaled, capped, biased, masked.

        (n, keys), -inf where blocked. Rows of the same keys are best side by side.
        """
        call = self.call
        q = call.q[b, h, i].double()
        scores = q.new_empty(len(b), call.keys)
        for some, k in self.k.of(b, h):
            torch.mm(q[some], k.T, out=scores[some])
        scores *= call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        if isinstance(call.bias, Tensor):
            at = (n if size > 1 else 0 for n, size in zip((b, h, i), call.bias.shape, strict=False))
            scores += call.bias[tuple(at)].double()
        elif call.bias is not None:
            query, place = torch.unique(i, return_inverse=True)
            scores += call.bias(query + call.keys - call.queries, self.key)[h, place].to(call.q.dtype)
        if self.sees is not None:
            scores.masked_fill_(~self.sees(b[:, None], h[:, None], i[:, None], self.key), -torch.inf)
        return scores

    def weights(self, b: Tensor, h: Tensor, i: Tensor, keys: Tensor | None = None) -> Tensor:
        """The weights of these rows, (n, keys); on some keys only, if they are said."""
        scores = self.scores(b, h, i)
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        largest = scores.amax(-1, keepdim=True)
        sink = None if self.sinks is None else self.sinks[h].double()[:, None]
        if sink is not None:
            largest = torch.maximum(largest, sink)
        # Not by the logarithm of the sum: where every score is the lowest number there is, that would lose the sum.
        scores = scores.sub_(largest.masked_fill(empty, 0.0)).exp_()  # inf - inf is not a number, as in the definition
        total = scores.sum(-1, keepdim=True)
        if sink is not None:
            total = total + (sink - largest).exp()
        wanted = scores if keys is None else scores.index_select(-1, keys)
        return (wanted / total).masked_fill(empty, 0.0)


class _Heads:
    """Keys or values, (batch, kv_heads, keys, width), in float64: the head that was asked for last."""

    def __init__(self, t: Tensor, heads: int) -> None:
        self.t, self.group = t, heads // t.shape[1]
        self.last: tuple[int, Tensor] | None = None

    def of(self, b: Tensor, h: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Neighbours that need the same head, and that head (keys, width)."""
        stop = 0
        needed, counts = torch.unique_consecutive(b * self.t.shape[1] + h // self.group, return_counts=True)
        for head, count in zip(needed.tolist(), counts.tolist(), strict=True):
            if self.last is None or self.last[0] != head:
                self.last = head, self.t[divmod(head, self.t.shape[1])].double()
            start, stop = stop, stop + count
            yield slice(start, stop), self.last[1]


def index_weights(m: AttentionMap, index: Any) -> Tensor:
    """What a dense tensor of the map would answer at this index.

    Raises:
        IndexError: as the dense tensor would.
    """
    # The index is tried on tensors that hold each element's own place, and take no memory.
    places = []
    for axis, size in enumerate(m.shape):
        lying = torch.arange(size).view([-1 if n == axis else 1 for n in range(4)]).expand(m.shape)
        places.append(_at(lying, index, m))
    shape = places[0].shape
    wide = torch.float64 if m.dtype == torch.float64 else torch.float32
    if not shape.numel():
        return torch.zeros(shape, dtype=wide, device=m.device)
    values, inverse = zip(*(_distinct(place) for place in places), strict=True)
    product = prod(map(len, values))
    if product == shape.numel() and all(bool((t.flatten() == torch.arange(t.numel())).all()) for t in inverse):
        return _product(m, values, wide).view(shape)
    if product <= 4 * shape.numel():
        return _product(m, values, wide)[tuple(inverse)]
    result = torch.zeros(shape, dtype=wide, device=m.device)
    flat = [place.reshape(-1) for place in places]
    for start in range(0, result.numel(), PAIRED):
        values, inverse = zip(*(_distinct(place[start : start + PAIRED]) for place in flat), strict=True)
        result.view(-1)[start : start + PAIRED] = _product(m, values, wide)[tuple(inverse)]
    return result


def _at(lying: Tensor, index: Any, m: AttentionMap) -> Tensor:
    try:
        return lying[index]
    except (IndexError, TypeError, ValueError) as error:
        kind = type(error)
        raise kind(f"a map of shape {tuple(m.shape)} (batch, heads, queries, keys), at {index!r}: {error}") from error


def _distinct(place: Tensor) -> tuple[Tensor, Tensor]:
    """The different numbers in a tensor, in order, and where each element's stands among them."""
    # Along an axis on which nothing changes, one element says it all.
    small = place[tuple(slice(0, 1) if step == 0 else slice(None) for step in place.stride())]
    values, inverse = torch.unique(small, return_inverse=True)
    return values, inverse


def _product(m: AttentionMap, values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The weights of these batch rows, heads, queries and keys, each with each."""
    exact = _Exact(m)
    *rows, keys = (some.to(m.device) for some in values)
    whole = len(keys) == m.shape[3]
    b, h, i = (t.flatten() for t in torch.meshgrid(*rows, indexing="ij"))
    tile = torch.empty(len(b), len(keys), dtype=dtype, device=m.device)
    for start in range(0, len(b), exact.at_once):
        some = slice(start, start + exact.at_once)
        tile[some] = exact.weights(b[some], h[some], i[some], None if whole else keys)
    return tile.view([len(some) for some in values])


def lse_matches(m: AttentionMap, lse: Tensor, empty: Tensor | None) -> bool:
    """Whether an lse that was handed over is the map's own, by some of its rows; empty rows do not count."""
    sound = lse.isfinite() if empty is None else lse.isfinite() | empty
    if not bool(sound.all()):
        return False
    exact = _Exact(m)
    n = torch.arange(ROWS, device=m.device)
    b, h, i = (n * size // ROWS for size in m.shape[:3])
    if empty is not None:
        b, h, i = (t[~empty[b, h, i]] for t in (b, h, i))
    return all(
        bool(((exact.scores(*some).logsumexp(-1) - lse[some]).abs() < CLOSE).all())
        for some in zip(*(torch.split(t, exact.at_once) for t in (b, h, i)), strict=True)
    )


def max_error(m: AttentionMap, sample: OutputSample, v: Tensor) -> float:
    """See `AttentionMap.error`."""
    exact, values = _Exact(m), _Heads(v, m.shape[1])
    batch, query = (t.to(m.device) for t in (sample.batch, sample.query))
    ours = torch.zeros(len(batch), m.shape[1], v.shape[-1], dtype=torch.float64, device=m.device)
    empty = torch.zeros(len(batch), dtype=torch.bool, device=m.device)
    n, h = (
        t.flatten() for t in torch.meshgrid(*(torch.arange(s, device=m.device) for s in ours.shape[:2]), indexing="ij")
    )
    order = (batch[n] * m.shape[1] + h).argsort(stable=True)  # rows of the same keys side by side
    for some in torch.split(order, exact.at_once):
        row, head = n[some], h[some]
        weights = exact.weights(batch[row], head, query[row])
        empty[row[~weights.any(-1)]] = True
        if sample.factor is not None:
            weights *= sample.factor[row, head].double()
        parts = [_sum(weights[same], seen) for same, seen in values.of(batch[row], head)]
        ours[row, head] = torch.cat(parts)
    finished = ours if sample.finish is None else sample.finish(ours.to(v.dtype))
    theirs = sample.output.double()
    difference, size = ((t[~empty]).abs().flatten() for t in (finished.double() - theirs, theirs))
    if not difference.numel():
        return nan
    largest = float(size.max())
    return float(difference.max()) / largest if largest else float(difference.max())


def _sum(weights: Tensor, v: Tensor) -> Tensor:
    """Weights @ v; a value of NaN or infinity that nobody attends to is nothing."""
    if bool(v.isfinite().all()):
        return weights @ v
    return torch.stack([row @ v.masked_fill((row == 0)[:, None], 0.0) for row in weights])
