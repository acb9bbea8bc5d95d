"""The log-sum-exp of a map's rows, computed once: many statistics need it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.lens.maps import moments
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.prepared import PreparedAttention
from regard.lens.maps.verify import lse_matches


def prepared_lse(inputs: AttentionInputs, prepared: PreparedAttention) -> Tensor:
    """The lse of the prepared scores, from which a row's `score_shift` may be subtracted."""
    if "lse" not in inputs.answer_cache:
        lse, shift = inputs.kernel_lse, prepared.score_shift
        usable = lse is not None and lse.dtype == prepared.call.q.dtype and not prepared.bias_dominates
        if usable and lse is not None and lse_matches(inputs, lse, prepared.empty_rows):
            cache_lse(inputs, prepared, lse if shift is None else lse - shift)
        else:
            cache_lse(inputs, prepared, moments.log_sum_exp(prepared))
    return inputs.answer_cache["lse"].to(prepared.call.q.dtype)  # type: ignore[no-any-return]


def cache_lse(inputs: AttentionInputs, prepared: PreparedAttention, lse: Tensor) -> None:
    """Keep an lse of the prepared scores for other statistics."""
    inputs.answer_cache["lse"] = prepared.fill_empty(lse, -torch.inf)


def log_denominator(inputs: AttentionInputs, prepared: PreparedAttention) -> Tensor:
    """See `PreparedAttention.log_denominator`."""
    return prepared.log_denominator(prepared_lse(inputs, prepared))
