"""Statistics that are linear in the weights: attention with other values.

- Mass on groups of keys: the values are the groups' indicators.
- Distance: the values are positions and their squares.
- Entropy of row i: lse_i - sum_j w_ij s_ij, and that sum is scale * q_i . sum_j w_ij k_j: attention with V = K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps.prepared import PreparedAttention
from regard.lens.maps.streaming import score_chunks

MIN_CELLS = 8
"""The smallest number of cells into which the keys are cut for their distance."""


class Distance(NamedTuple):
    """The distance from the queries to the keys that they attend to."""

    mean: Float[Tensor, "batch heads queries"]
    """Query position - key position, on average under the row's weights: above 0 for keys before the query."""
    spread: Float[Tensor, "batch heads queries"]
    """Standard deviation of the attended position."""


def log_sum_exp(prepared: PreparedAttention) -> Tensor:
    """The lse of every row's scores; -inf in empty rows."""
    if prepared.fused:
        return prepared.attend(prepared.call.k)[1]
    lse = prepared.call.q.new_full(prepared.call.q.shape[:-1], -torch.inf)
    for block, scores in score_chunks(prepared):
        block.put_queries(lse, scores.logsumexp(-1))
    return lse


def entropy(prepared: PreparedAttention) -> tuple[Tensor, Tensor]:
    """-sum_j w_ij log w_ij of every row, 0 in empty rows; and the lse."""
    call = prepared.call
    if prepared.fused and call.bias is None and not prepared.huge_scores:
        output, lse = prepared.attend(call.k)
        entropies = lse - (call.q * output).sum(-1) * call.scale
    else:
        lse = torch.full_like(call.q[..., 0], -torch.inf)
        entropies = torch.zeros_like(lse)
        for block, scores in score_chunks(prepared):
            sums = scores.logsumexp(-1, keepdim=True)
            block.put_queries(lse, sums[..., 0])
            # The lse is subtracted from the scores first, so that no large numbers cancel; -inf has weight 0.
            logs = scores.sub_(sums).nan_to_num_(nan=-torch.inf)
            block.put_queries(entropies, -(logs.exp() * logs.clamp_(min=torch.finfo(logs.dtype).min)).sum(-1))
    return entropy_with_sinks(prepared, prepared.fill_empty(entropies, 0.0).clamp_(min=0.0), lse), lse


def entropy_with_sinks(prepared: PreparedAttention, entropies: Tensor, lse: Tensor) -> Tensor:
    """The entropy of every row from that among its keys: m * (entropy - log m), where the keys have the share m."""
    if prepared.sinks is None:
        return entropies
    share = prepared.row_sums(lse)
    assert share is not None
    logs = (lse - prepared.log_denominator(lse)).clamp_(min=torch.finfo(lse.dtype).min)
    return share * entropies - torch.where(share > 0, share * logs, 0.0)


def mass(prepared: PreparedAttention, groups: Tensor, count: int) -> Tensor:
    """The sum of each row's weights on the keys of each group, (batch, heads, queries, groups).

    Args:
        prepared: the attention.
        groups: see `parse_groups`.
        count: see `parse_groups`.
    """
    call = prepared.call
    width = call.q.shape[-1]
    masses = call.q.new_empty(*call.q.shape[:-1], count)
    for start in range(0, count, width):
        stop = min(start + width, count)
        masses[..., start:stop] = _weighted_sum(prepared, group_columns(groups, start, stop).to(call.q.dtype))
    masses = masses if prepared.empty_rows is None else masses.masked_fill_(prepared.empty_rows[..., None], 0.0)
    if prepared.sinks is None:
        return masses
    share = prepared.row_sums(log_sum_exp(prepared))
    assert share is not None
    return masses.mul_(share[..., None])


def group_columns(groups: Tensor, start: int, stop: int) -> Tensor:
    """(batch or 1, keys, stop - start): whether each key is in each of these groups."""
    if groups.dtype == torch.bool:
        return groups[None, start:stop].transpose(1, 2)
    return groups[:, :, None] == torch.arange(start, stop, device=groups.device)


def parse_groups(groups: Sequence[int] | Sequence[Sequence[int]] | Tensor, batch: int, keys: int) -> tuple[Tensor, int]:
    """The group of each key, (batch or 1, keys), or bool (groups, keys), checked; and the number of groups.

    Raises:
        TypeError: neither whole numbers nor bool.
        ValueError: groups of another shape than the keys.
    """
    t = groups if isinstance(groups, Tensor) else torch.as_tensor(groups, dtype=None if groups else torch.int64)
    if t.is_floating_point() or t.is_complex():
        raise TypeError(f"groups are whole numbers, one per key, or a bool tensor (groups, keys); got {t.dtype}")
    if t.dtype == torch.bool:
        if t.ndim != 2 or t.shape[1] != keys:
            raise ValueError(
                f"groups that do not fit {keys} keys: a bool tensor is (groups, keys); got shape {tuple(t.shape)}"
            )
        return t, len(t)
    t = t.to(torch.int64)
    if tuple(t.shape) not in ((keys,), (batch, keys)) or (t.numel() and int(t.min()) < 0):
        lowest = f", the lowest of them {int(t.min())}" if t.numel() else ""
        raise ValueError(
            f"groups that do not fit {keys} keys: one group per key, from 0 on, shape {(keys,)} or {(batch, keys)}; "
            f"got shape {tuple(t.shape)}{lowest}"
        )
    return t.view(-1, keys) if keys else t.reshape(1, 0), int(t.max()) + 1 if t.numel() else 0


def _weighted_sum(prepared: PreparedAttention, columns: Tensor) -> Tensor:
    """Weights @ columns, without sinks; columns are (batch or 1, keys, columns), the same for every head."""
    call = prepared.call
    # The fused kernel needs values at least as wide as q and k. One copy serves all heads.
    v = columns.new_zeros(len(columns), call.keys, max(columns.shape[-1], call.q.shape[-1]))
    v[..., : columns.shape[-1]] = columns
    return prepared.output(v[:, None].expand(len(call.k), call.k.shape[1], -1, -1))[..., : columns.shape[-1]]


def distance(prepared: PreparedAttention) -> Distance:
    """Mean and spread of the attended position under each row's weights; 0 in empty rows.

    The squares of positions of several thousand leave float32 no digits for a small spread. So the keys are cut into
    as many cells as the width of the values allows, with three columns each: the weight of the cell, and in it the
    sums of the positions and of their squares, relative to its middle. The cells are added in float64. In float32 a
    spread of zero becomes about 2e-4 of a cell's width: with d_key 64, 0.3 positions of 32,768.
    """
    cells = PositionCells(prepared)
    return cells.distance(_weighted_sum(prepared, cells.columns[None]))


class PositionCells:
    """The keys in cells, with the columns whose weighted sums give the distance of each row; see `distance`."""

    def __init__(self, prepared: PreparedAttention) -> None:
        self.prepared, call = prepared, prepared.call
        device = call.q.device
        self.count = max(MIN_CELLS, call.q.shape[-1] // 3)
        self.size = -(-call.keys // self.count)
        position = torch.arange(call.keys, device=device)
        cell = position // self.size
        self.middle = torch.arange(self.count, device=device, dtype=torch.float64) * self.size + (self.size - 1) / 2
        relative = (position - self.middle[cell]) / self.size
        indicators = (cell == torch.arange(self.count, device=device)[:, None]).to(torch.float64)
        self.columns = torch.cat([indicators, indicators * relative, indicators * relative**2]).T.to(call.q.dtype)
        """(keys, 3 * cells)."""

    def distance(self, moments: Tensor) -> Distance:
        """Mean and spread from the weighted sums of the columns, (batch, heads, queries, 3 * cells)."""
        call = self.prepared.call
        mean = torch.empty(call.q.shape[:-1], dtype=torch.float64, device=call.q.device)
        spread = torch.empty_like(mean)
        for head in range(mean.shape[1]):
            weight, first, second = torch.split(moments[:, head].double(), self.count, -1)
            total = weight.sum(-1).clamp(min=torch.finfo(torch.float32).tiny)
            first, second = first * self.size, second * self.size**2
            weight, first, second = (t / total[..., None] for t in (weight, first, second))
            mean[:, head] = (weight * self.middle + first).sum(-1)
            deviation = self.middle - mean[:, head, :, None]
            spread[:, head] = (weight * deviation**2 + 2 * deviation * first + second).sum(-1).clamp(min=0.0).sqrt()
        query = torch.arange(call.queries, device=call.q.device) + call.keys - call.queries
        return Distance(*(self.prepared.fill_empty(t, 0.0) for t in (query - mean, spread)))
