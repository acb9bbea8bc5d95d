"""Single rows without one of their keys, exact, and what blocking each key of a row changes.

If key j is blocked for query i, the other weights of the row share what it had, sinks included:

    O'_i = (O_i - w_ij v_j) / (1 - w_ij)

Where w_ij is near 1, 1 - w_ij has lost its digits. At most one weight of a row is above a half, so for the largest
weight of each row the sum over the other keys is computed instead: the softmax of the row without that key. It is
exact where rounding made the weight 1, and 0 where no key is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.maps.attribution import check_grad
from regard.lens.maps.indexing import ExactRows, HeadCache
from regard.lens.maps.inputs import AttentionInputs


@dataclass(frozen=True)
class _Rows:
    """Some rows in float64, with and without the key of their largest weight."""

    b: Tensor
    h: Tensor
    n: Tensor
    """Which of the queries that were asked for, (rows,); so are b and h, the batch row and the head."""
    weights: Tensor
    """(rows, keys)"""
    output: Tensor
    """(rows, d_value)"""
    heaviest: Tensor
    """The key of the largest weight, (rows,)."""
    without_heaviest: Tensor
    """The output if that key is blocked, (rows, d_value)."""


def without_key(inputs: AttentionInputs, queries: Sequence[int] | Tensor, keys: Sequence[int] | Tensor) -> Tensor:
    """See `AttentionMap.without_key`.

    Raises:
        TypeError: as `positions` does, and so the IndexError.
        ValueError: not as many keys as queries; no values, or with NaN or infinity.
    """
    v = inputs.finite_v("without_key")
    query, key = (positions(*args, inputs) for args in (("query", queries, 2), ("key", keys, 3)))
    if len(query) != len(key):
        raise ValueError(f"without_key wants one key for each query; got {len(query)} queries and {len(key)} keys")
    result = torch.zeros(*inputs.shape[:2], len(query), v.shape[-1], dtype=inputs.answer_dtype, device=inputs.device)
    query, place = torch.unique(query, return_inverse=True)
    group = inputs.shape[1] // v.shape[1]
    for rows in _exact_rows(inputs, v, query):
        # A row may be asked for without several keys, one at a time.
        row, pair = (place == rows.n[:, None]).nonzero(as_tuple=True)
        b, h, j = rows.b[row], rows.h[row], key[pair]
        weight = rows.weights[row, j][:, None]
        others = (rows.output[row] - weight * v[b, h // group, j].double()) / (1 - weight)
        is_heaviest = (j == rows.heaviest[row])[:, None]
        result[b, h, pair] = torch.where(is_heaviest, rows.without_heaviest[row], others).to(result.dtype)
    return result


def edge_attribution(inputs: AttentionInputs, grad: Tensor, queries: Sequence[int] | Tensor) -> Tensor:
    """See `AttentionMap.edge_attribution`.

    Raises:
        TypeError: as `positions` and `check_grad` do, and so the other errors.
        ValueError: no values, or with NaN or infinity.
    """
    v = inputs.finite_v("edge_attribution")
    check_grad(inputs, grad)
    query = positions("query", queries, 2, inputs)
    result = torch.zeros(
        *inputs.shape[:2], len(query), inputs.shape[3], dtype=inputs.answer_dtype, device=inputs.device
    )
    values = HeadCache(v, inputs.shape[1])
    for rows in _exact_rows(inputs, v, query):
        g = grad[rows.b, rows.h, query[rows.n]].double()
        # What the weights' gradients are: dO_i . v_j.
        by_key = torch.cat([g[part] @ t.T for part, t in values.runs(rows.b, rows.h)])
        by_row = (g * rows.output).sum(-1, keepdim=True)
        change = rows.weights / (1 - rows.weights) * (by_row - by_key)
        of_heaviest = (g * (rows.without_heaviest - rows.output)).sum(-1, keepdim=True)
        change.scatter_(-1, rows.heaviest[:, None], of_heaviest)
        result[rows.b, rows.h, rows.n] = change.to(result.dtype)
    return result


def positions(name: str, at: Sequence[int] | Tensor, axis: int, inputs: AttentionInputs) -> Tensor:
    """Positions of queries or keys as whole numbers from 0 on; those below 0 count from the end.

    Raises:
        TypeError: not a list of whole numbers.
        IndexError: a position that is not there.
    """
    t = at if isinstance(at, Tensor) else torch.as_tensor(at, dtype=None if len(at) else torch.int64)
    if t.dtype == torch.bool or t.is_floating_point() or t.is_complex() or t.ndim != 1:
        raise TypeError(f"a {name} is given by its position, in a list of whole numbers such as [0, -1]; got {at!r}")
    size = inputs.shape[axis]
    outside = (t < -size) | (t >= size)
    if bool(outside.any()):
        raise IndexError(f"there is no {name} {int(t[outside][0])}: the map has {size}, counted from 0")
    return (t.to(inputs.device, torch.int64) + size) % max(1, size)


def _exact_rows(inputs: AttentionInputs, v: Tensor, query: Tensor) -> Iterator[_Rows]:
    """The rows of these queries in every batch row and head, as many at once as `ExactRows` has in memory."""
    if 0 in (*inputs.shape, len(query)):
        return
    exact, values = ExactRows(inputs), HeadCache(v, inputs.shape[1])
    axes = (torch.arange(size, device=inputs.device) for size in (*inputs.shape[:2], len(query)))
    grid = [t.flatten() for t in torch.meshgrid(*axes, indexing="ij")]
    for b, h, n in zip(*(torch.split(t, exact.chunk_rows) for t in grid), strict=True):
        scores = exact.scores(b, h, query[n])
        weights = exact.softmax(scores.clone(), h)
        heaviest = weights.argmax(-1)
        others = exact.softmax(scores.scatter_(-1, heaviest[:, None], -torch.inf), h)
        outputs = [(weights[part] @ t, others[part] @ t) for part, t in values.runs(b, h)]
        output, without = (torch.cat(t) for t in zip(*outputs, strict=True))
        yield _Rows(b, h, n, weights, output, heaviest, without)
