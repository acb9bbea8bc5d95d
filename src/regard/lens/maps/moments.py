"""Statistics that are linear in the weights: attention with other values.

- Mass on groups of keys: the values are the groups' indicators.
- Distance: the values are positions and their squares.
- Entropy of row i: lse_i - sum_j w_ij s_ij, and that sum is scale * q_i . sum_j w_ij k_j: attention with V = K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard._shapes import Float
from regard.attention.kernels.call import AttentionCall
from regard.attention.kernels.score_block import Places
from regard.lens.maps.prepared import PreparedAttention
from regard.lens.maps.streaming import score_chunks

MIN_CELLS = 8
"""The smallest number of cells into which the keys are cut for their distance."""

MAX_CHUNK_CELL_KEYS = 256
"""The most keys of a cell where the weights themselves are multiplied, which takes no more time for more cells."""


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
    call, count = prepared.call, max(MIN_CELLS, prepared.call.q.shape[-1] // 3)
    size = cell_keys(call)
    position = torch.arange(call.keys, device=call.q.device)
    cell = position // size
    middle = torch.arange(count, device=call.q.device, dtype=torch.float64) * size + (size - 1) / 2
    indicators = (cell == torch.arange(count, device=call.q.device)[:, None]).to(torch.float64)
    relative = (position - middle[cell]) / size
    columns = torch.cat([indicators, indicators * relative, indicators * relative**2]).T.to(call.q.dtype)
    moments = _weighted_sum(prepared, columns[None])
    mean, spread = (torch.empty(call.q.shape[:-1], dtype=torch.float64, device=call.q.device) for _ in range(2))
    for head in range(mean.shape[1]):
        by_cell = torch.stack(torch.split(moments[:, head].double(), count, -1), -1)
        mean[:, head], spread[:, head] = _mean_and_spread(by_cell, middle, size)
    return distance_from_query(prepared, mean, spread)


def distance_from_query(prepared: PreparedAttention, mean: Tensor, spread: Tensor) -> Distance:
    """The distance from the mean and the spread of the attended position; 0 in empty rows."""
    call = prepared.call
    query = torch.arange(call.queries, device=call.q.device) + call.keys - call.queries
    return Distance(*(prepared.fill_empty(t, 0.0) for t in (query - mean, spread)))


def cell_keys(call: AttentionCall) -> int:
    """The number of keys in a cell of `distance`."""
    return -(-call.keys // max(MIN_CELLS, call.q.shape[-1] // 3))


def attended_position(keys: Places, weights: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean and spread of the attended position of each row, by the cells of `distance`; (batch, heads, rows), float64.

    Args:
        keys: the keys of the weights.
        weights: (batch, heads, rows, keys); each row with all keys that it attends to.
        size: the number of keys in a cell.
    """
    if isinstance(keys, Tensor):
        # Between two neighbours may lie many positions, so that a cell would be wide: one cell, in float64.
        middle = (keys[:1] + keys[-1:]) / 2
        moments = F.linear(weights.double(), _position_values((keys - middle).double()))[..., None, :]
        return _mean_and_spread(moments, middle.double(), 1)
    first, stop = keys
    relative = (torch.arange(size, device=weights.device, dtype=torch.float64) - (size - 1) / 2) / size
    values = _position_values(relative).to(weights.dtype)
    count, rest = divmod(stop - first, size)
    moments = F.linear(weights[..., : count * size].reshape(*weights.shape[:-1], count, size), values)
    if rest:
        last = F.linear(weights[..., count * size :], values[:, :rest])
        moments = torch.cat([moments, last[..., None, :]], -2)
    middle = torch.arange(first, stop, size, device=weights.device, dtype=torch.float64) + (size - 1) / 2
    return _mean_and_spread(moments.double(), middle, size)


def _position_values(relative: Tensor) -> Tensor:
    """(3, keys): the values whose weighted sums are the weight of a cell and its first and second moment."""
    return torch.stack([torch.ones_like(relative), relative, relative**2])


def pad_columns(columns: Tensor) -> Tensor:
    """Columns of zeros up to a multiple of 16: for 127 columns a product takes 1.3 times as long as for 128."""
    return F.pad(columns, (0, -columns.shape[-1] % 16))


def _mean_and_spread(moments: Tensor, middle: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean and spread of the attended position from the moments of each cell, (..., cells, 3) in float64."""
    weight, first, second = moments.unbind(-1)
    total = weight.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    weight, first, second = weight / total, first * (size / total), second * (size**2 / total)
    mean = (weight * middle + first).sum(-1)
    deviation = middle - mean[..., None]
    return mean, (weight * deviation**2 + 2 * deviation * first + second).sum(-1).clamp(min=0.0).sqrt()
