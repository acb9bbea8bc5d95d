"""The attention to each group of keys alone, and its merge into the attention to all of them.

The outputs O_g over disjoint groups of keys and the log-sum-exps of their scores are all that is needed to merge them,
exactly: with d = log(sum_g exp(lse_g)), the output is sum_g exp(lse_g - d) O_g (Milakov & Gimelshein 2018, "Online
normalizer calculation for softmax", section 3.1; kernels that split the keys do the same). So exp(lse_g - d) O_g is
what the keys of group g contribute to the output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.attention.mask import allowed
from regard.attention.plan import choose
from regard.lens.maps import moments
from regard.lens.maps.prepared import PreparedAttention, empty_rows


class GroupOutputs(NamedTuple):
    """The attention to each group of keys alone, as if all other keys were blocked."""

    output: Float[Tensor, "batch heads queries groups d_value"]
    """Weights @ v of the softmax over the group's keys, without sinks; 0 where there is nothing to attend to."""
    lse: Float[Tensor, "batch heads queries groups"]
    """The log-sum-exp of the scores of the group's keys; -inf where there is nothing to attend to."""

    def contributions(self, sinks: Float[Tensor, " heads"] | None = None) -> Float[Tensor, "batch heads queries g d"]:
        """What each group contributes to the output over all groups: they sum to it. The groups must not overlap.

        Args:
            sinks: the sinks of the attention, `AttentionMap.sinks`, which have a share of each row.
        """
        total = self.lse.logsumexp(-1, keepdim=True)
        if sinks is not None:
            total = torch.logaddexp(total, sinks.to(self.lse.dtype)[:, None, None])
        # Where total is -inf too, there is no key: a difference of the two would be NaN.
        shares = (self.lse - total).exp().masked_fill(self.lse == -torch.inf, 0.0)
        return shares[..., None] * self.output

    def merge(self, sinks: Float[Tensor, " heads"] | None = None) -> Float[Tensor, "batch heads queries d_value"]:
        """The attention to all keys of the groups, which must not overlap; the whole output if they hold every key.

        Args:
            sinks: as in `contributions`.
        """
        return self.contributions(sinks).sum(-2)


def group_outputs(prepared: PreparedAttention, v: Tensor, groups: Tensor, count: int) -> GroupOutputs:
    """See `AttentionMap.group_outputs`.

    Args:
        prepared: the attention.
        v: (batch, kv_heads, keys, d_value), in the dtype of the prepared call.
        groups: see `moments.parse_groups`.
        count: see `moments.parse_groups`.
    """
    shape = prepared.call.q.shape[:-1]
    output, lse = v.new_zeros(*shape, count, v.shape[-1]), v.new_full((*shape, count), -torch.inf)
    for n in range(count):
        members = groups[n : n + 1] if groups.dtype == torch.bool else groups == n
        part = _only_keys(prepared, members)
        if part.fused:
            rows, part_lse = part.attend(v)
        else:
            rows, part_lse = part.output(v), moments.log_sum_exp(part)
        output[..., n, :] = rows
        lse[..., n] = part_lse if part.score_shift is None else part_lse + part.score_shift
    return GroupOutputs(output, lse)


def _only_keys(prepared: PreparedAttention, members: Tensor) -> PreparedAttention:
    """The attention in which all keys but these, bool (batch or 1, keys), are blocked."""
    keys = allowed(members[:, None, None])
    call = replace(prepared.call, mask=keys if prepared.call.mask is None else prepared.call.mask & keys)
    schedule = choose(call).schedule
    return replace(prepared, call=call, schedule=schedule, empty_rows=empty_rows(call, schedule))
