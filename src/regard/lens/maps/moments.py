"""Questions that are linear in the weights: attention with other values.

- Mass on groups of keys: the values are the groups' indicators.
- Distance: they are positions and their squares.
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

__all__ = ["Distance", "distance", "entropy", "log_sum_exp", "mass", "parse_groups"]

CELLS = 8
"""Keys are cut into so many cells for their distance, at least."""


class Distance(NamedTuple):
    """How far the attended keys stand from their query."""

    mean: Float[Tensor, "batch heads queries"]
    """Query position - key position, on average under the row's weights: above 0 looks back."""
    spread: Float[Tensor, "batch heads queries"]
    """Standard deviation of the attended position."""


def log_sum_exp(prepared: PreparedAttention) -> Tensor:
    """The lse of every row's scores; -inf in empty rows."""
    if prepared.fused:
        return prepared.attend(prepared.call.k)[1]
    lse = prepared.call.q.new_full(prepared.call.q.shape[:-1], -torch.inf)
    for block, scores in score_chunks(prepared):
        block.take_queries(lse).copy_(scores.logsumexp(-1))
    return lse


def entropy(prepared: PreparedAttention) -> tuple[Tensor, Tensor]:
    """-sum_j w_ij log w_ij of every row, 0 in empty rows; and the lse."""
    call = prepared.call
    if prepared.fused and call.bias is None:
        output, lse = prepared.attend(call.k)
        entropies = lse - (call.q * output).sum(-1) * call.scale
    else:
        lse = torch.full_like(call.q[..., 0], -torch.inf)
        entropies = torch.zeros_like(lse)
        for block, scores in score_chunks(prepared):
            sums = scores.logsumexp(-1, keepdim=True)
            block.take_queries(lse).copy_(sums[..., 0])
            # Of the scores from the lse on, so that no large numbers are subtracted; -inf weighs nothing.
            logs = scores.sub_(sums).nan_to_num_(nan=-torch.inf)
            block.take_queries(entropies).copy_(-(logs.exp() * logs.clamp_(min=torch.finfo(logs.dtype).min)).sum(-1))
    entropies = prepared.without_empty(entropies, 0.0).clamp_(min=0.0)
    if prepared.sinks is not None:
        # With the share m of a row that is not the sink's: m * (entropy of the rest - log m).
        share = prepared.share(lse)
        assert share is not None
        logs = (lse - prepared.norm(lse)).clamp_(min=torch.finfo(lse.dtype).min)
        entropies = share * entropies - torch.where(share > 0, share * logs, 0.0)
    return entropies, lse


def mass(prepared: PreparedAttention, groups: Tensor, count: int) -> Tensor:
    """The sum of each row's weights on the keys of each group, (batch, heads, queries, groups).

    Args:
        prepared: the map.
        groups: see `parse_groups`.
        count: see `parse_groups`.
    """
    call = prepared.call
    width = call.q.shape[-1]
    masses = call.q.new_empty(*call.q.shape[:-1], count)
    for start in range(0, count, width):
        stop = min(start + width, count)
        if groups.dtype == torch.bool:
            inside = groups[None, start:stop]
        else:
            inside = groups[:, None] == torch.arange(start, stop, device=groups.device)[:, None]
        masses[..., start:stop] = _summed(prepared, inside.transpose(1, 2).to(call.q.dtype))
    masses = masses if prepared.empty is None else masses.masked_fill_(prepared.empty[..., None], 0.0)
    if prepared.sinks is None:
        return masses
    share = prepared.share(log_sum_exp(prepared))
    assert share is not None
    return masses.mul_(share[..., None])


def parse_groups(groups: Sequence[int] | Sequence[Sequence[int]] | Tensor, batch: int, keys: int) -> tuple[Tensor, int]:
    """The group of each key, (batch or 1, keys), or bool (groups, keys), checked; and how many groups there are.

    Raises:
        TypeError: neither whole numbers nor bool.
        ValueError: groups that do not cover the keys.
    """
    t = groups if isinstance(groups, Tensor) else torch.as_tensor(groups, dtype=None if groups else torch.int64)
    if t.is_floating_point() or t.is_complex():
        raise TypeError(f"groups are whole numbers, one per key, or a bool tensor (groups, keys); got {t.dtype}")
    if t.dtype == torch.bool:
        if t.ndim != 2 or t.shape[1] != keys or not bool(t.any(0).all()):
            raise ValueError(
                f"groups that do not cover the keys: a bool tensor (groups, keys) of {keys} keys, each in one group at "
                f"least; got shape {tuple(t.shape)}"
            )
        return t, len(t)
    t = t.to(torch.int64)
    if tuple(t.shape) not in ((keys,), (batch, keys)) or (t.numel() and int(t.min()) < 0):
        lowest = f", the lowest of them {int(t.min())}" if t.numel() else ""
        raise ValueError(
            f"groups that do not cover the keys: one group per key, from 0 on, shape {(keys,)} or {(batch, keys)}; "
            f"got shape {tuple(t.shape)}{lowest}"
        )
    return t.view(-1, keys) if keys else t.reshape(1, 0), int(t.max()) + 1 if t.numel() else 0


def _summed(prepared: PreparedAttention, columns: Tensor) -> Tensor:
    """Weights @ columns, without sinks; columns are (batch or 1, keys, columns), the same for every head."""
    call = prepared.call
    # At least as wide as q and k: that is what the fused kernel wants. One copy stands for all heads.
    wide = columns.new_zeros(len(columns), call.keys, max(columns.shape[-1], call.q.shape[-1]))
    wide[..., : columns.shape[-1]] = columns
    v = wide[:, None].expand(len(call.k), call.k.shape[1], -1, -1)
    return prepared.output(v)[..., : columns.shape[-1]]


def distance(prepared: PreparedAttention) -> Distance:
    """Mean and spread of the attended position under each row's weights; 0 in empty rows.

    Squares of positions up to some ten thousand leave float32 no digits for a small spread. So the keys are cut into
    as many cells as the values have room for, three columns each: the cell's weight, and in it the sum of positions
    and of their squares, counted from its middle. The cells are put together in float64. In float32 a spread of zero
    comes out as some 2e-4 of a cell's width: with d_key 64, 0.3 positions of 32,768.
    """
    call = prepared.call
    cells = max(CELLS, call.q.shape[-1] // 3)
    size = -(-call.keys // cells)
    position = torch.arange(call.keys, device=call.q.device)
    cell = position // size
    middle = torch.arange(cells, device=call.q.device, dtype=torch.float64) * size + (size - 1) / 2
    local = (position - middle[cell]) / size
    inside = (cell == torch.arange(cells, device=call.q.device)[:, None]).to(torch.float64)
    columns = torch.cat([inside, inside * local, inside * local**2])
    moments = _summed(prepared, columns.T[None].to(call.q.dtype))
    mean = torch.empty(call.q.shape[:-1], dtype=torch.float64, device=call.q.device)
    spread = torch.empty_like(mean)
    for head in range(mean.shape[1]):
        weight, first, second = torch.split(moments[:, head].double(), cells, -1)
        whole = weight.sum(-1).clamp(min=torch.finfo(torch.float32).tiny)
        weight, first, second = (t / whole[..., None] for t in (weight, first * size, second * size**2))
        mean[:, head] = (weight * middle + first).sum(-1)
        away = middle - mean[:, head, :, None]
        spread[:, head] = (weight * away**2 + 2 * away * first + second).sum(-1).clamp(min=0.0).sqrt()
    query = torch.arange(call.queries, device=call.q.device) + call.keys - call.queries
    return Distance(*(prepared.without_empty(t, 0.0) for t in (query - mean, spread)))
