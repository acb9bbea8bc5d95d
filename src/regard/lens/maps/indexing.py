"""Single weights, rows and tiles of a map, by the definition in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.prepared import apply_softcap_, to_call

CHUNK_SCORES = 2**20
"""About how many scores are in memory at once."""

CHUNK_ELEMENTS = 2**10
"""The number of elements computed at once where an index lists them one by one."""


class ExactRows:
    """Rows of the weights in float64, given by batch row, head and query."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self.call, self.sinks = to_call(inputs, inputs.dtype)
        self.k = HeadCache(self.call.k, inputs.shape[1])
        self.key = torch.arange(inputs.shape[3], device=inputs.device)
        mask = self.call.mask
        self.allowed = None if mask is None else mask.predicate(inputs.shape[2], inputs.shape[3], inputs.device)
        self.chunk_rows = max(1, CHUNK_SCORES // max(1, inputs.shape[3]))
        """The number of rows to compute at once."""

    def scores(self, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
        """The softmax's input for these batch rows, heads and queries, (n,) each: scaled, capped, biased, masked.

        (n, keys), -inf where blocked. It is fastest when rows with the same keys are adjacent.
        """
        call = self.call
        q = call.q[b, h, i].double()
        scores = q.new_empty(len(b), call.keys)
        for rows, k in self.k.runs(b, h):
            torch.mm(q[rows], k.T, out=scores[rows])
        scores *= call.scale
        apply_softcap_(scores, call.softcap)
        if isinstance(call.bias, Tensor):
            at = (n if size > 1 else 0 for n, size in zip((b, h, i), call.bias.shape, strict=False))
            scores += call.bias[tuple(at)].double()
        elif call.bias is not None:
            query, place = torch.unique(i, return_inverse=True)
            scores += call.bias(query + call.keys - call.queries, self.key)[h, place].to(call.q.dtype)
        if self.allowed is not None:
            scores.masked_fill_(~self.allowed(b[:, None], h[:, None], i[:, None], self.key), -torch.inf)
        return scores

    def weights(self, b: Tensor, h: Tensor, i: Tensor, keys: Tensor | None = None) -> Tensor:
        """The weights of these rows, (n, keys); only those on some keys, if keys are given."""
        weights = self.softmax(self.scores(b, h, i), h)
        return weights if keys is None else weights.index_select(-1, keys)

    def softmax(self, scores: Tensor, h: Tensor) -> Tensor:
        """The weights of rows of scores (n, keys), whose heads are h; the scores are overwritten."""
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
        return scores.div_(total).masked_fill_(empty, 0.0)


class HeadCache:
    """Keys or values, (batch, kv_heads, keys, width), head by head in float64; the last head stays converted."""

    def __init__(self, t: Tensor, heads: int) -> None:
        self.t, self.group = t, heads // t.shape[1]
        self.last: tuple[int, Tensor] | None = None

    def runs(self, b: Tensor, h: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Adjacent rows that need the same head, and that head (keys, width)."""
        stop = 0
        needed = torch.unique_consecutive(b * self.t.shape[1] + h // self.group, return_counts=True)
        for head, count in torch.stack(needed, -1).tolist():
            if self.last is None or self.last[0] != head:
                self.last = head, self.t[divmod(head, self.t.shape[1])].double()
            start, stop = stop, stop + count
            yield slice(start, stop), self.last[1]


def index_weights(inputs: AttentionInputs, index: Any) -> Tensor:
    """The weights that the dense tensor of the map would return at this index.

    Raises:
        IndexError: as the dense tensor would.
    """
    # The index is applied to views in which each element is its own coordinate on one axis; they take no memory.
    coordinates = []
    for axis, size in enumerate(inputs.shape):
        coordinate = torch.arange(size).view([-1 if n == axis else 1 for n in range(4)]).expand(inputs.shape)
        coordinates.append(_apply_index(coordinate, index, inputs.shape))
    shape = coordinates[0].shape
    if not shape.numel():
        return torch.zeros(shape, dtype=inputs.answer_dtype, device=inputs.device)
    values, inverse = zip(*(_unique(t) for t in coordinates), strict=True)
    size = prod(map(len, values))
    if size == shape.numel() and all(bool((t.flatten() == torch.arange(t.numel())).all()) for t in inverse):
        return _weight_grid(inputs, values).view(shape)
    if size <= 4 * shape.numel():
        return _weight_grid(inputs, values)[tuple(inverse)]
    result = torch.zeros(shape, dtype=inputs.answer_dtype, device=inputs.device)
    flat = [t.reshape(-1) for t in coordinates]
    for start in range(0, result.numel(), CHUNK_ELEMENTS):
        values, inverse = zip(*(_unique(t[start : start + CHUNK_ELEMENTS]) for t in flat), strict=True)
        result.view(-1)[start : start + CHUNK_ELEMENTS] = _weight_grid(inputs, values)[tuple(inverse)]
    return result


def _apply_index(coordinate: Tensor, index: Any, shape: torch.Size) -> Tensor:
    try:
        return coordinate[index]
    except (IndexError, TypeError, ValueError) as error:
        message = f"a map of shape {tuple(shape)} (batch, heads, queries, keys), at {index!r}: {error}"
        raise type(error)(message) from error


def _unique(t: Tensor) -> tuple[Tensor, Tensor]:
    """The different numbers in a tensor, sorted, and for each element the index of its number among them."""
    # Of an axis with stride 0 the first element is enough.
    compact = t[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in t.stride())]
    values, inverse = torch.unique(compact, return_inverse=True)
    return values, inverse


def _weight_grid(inputs: AttentionInputs, values: Sequence[Tensor]) -> Tensor:
    """The weights at every combination of these batch rows, heads, queries and keys."""
    exact = ExactRows(inputs)
    *rows, keys = (t.to(inputs.device) for t in values)
    all_keys = len(keys) == inputs.shape[3]
    b, h, i = (t.flatten() for t in torch.meshgrid(*rows, indexing="ij"))
    grid = torch.empty(len(b), len(keys), dtype=inputs.answer_dtype, device=inputs.device)
    for start in range(0, len(b), exact.chunk_rows):
        chunk = slice(start, start + exact.chunk_rows)
        grid[chunk] = exact.weights(b[chunk], h[chunk], i[chunk], None if all_keys else keys)
    return grid.view([len(t) for t in values])
