"""The output of a map and what each key contributes to it: by attention with the values, and by its transpose.

With dO_i the gradient of a metric by row i of the output O, the gradient of the weight w_ij is dO_i . v_j, and that of
the softmax's input is dS_ij = w_ij (dO_i . v_j - D_i) with D_i = dO_i . O_i (Dao et al. 2022, "FlashAttention",
appendix B.2). Summed over the queries, with dV_j = sum_i w_ij dO_i, the gradient of the value of key j in one query
head:

    sum_i w_ij (dO_i . v_j) = v_j . dV_j
    sum_i dS_ij             = v_j . dV_j - sum_i w_ij D_i

So two calls of the fused kernel answer for every key: the attention itself, and the transposed one with dO and D as
values (`received`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float
from regard.attention.steps import grouped_matmul
from regard.lens.maps.inputs import AttentionInputs
from regard.lens.maps.lse import cache_lse, log_denominator, prepared_lse
from regard.lens.maps.prepared import PreparedAttention, prepare
from regard.lens.maps.received import received_values


class Attribution(NamedTuple):
    """What a metric owes to each query and each key, to first order; each head by itself."""

    output: Float[Tensor, "batch heads queries"]
    """D_i = dO_i . O_i, gradient times output: about what the metric loses if the output of query i becomes 0."""
    values: Float[Tensor, "batch heads keys"]
    """sum_i w_ij (dO_i . v_j) = v_j . dV_j, gradient times value: about what it loses if v_j becomes 0."""
    scores: Float[Tensor, "batch heads keys"]
    """sum_i dS_ij, gradient of a number added to the scores of key j for every query, after scale, soft-cap and bias.
    Where no weight on the key is near 1, it is about what the metric loses if the key is blocked for every query: for
    one query that is dS_ij / (1 - w_ij)."""


def output(inputs: AttentionInputs, prepared: PreparedAttention, v: Tensor) -> Tensor:
    """Weights @ v with the sinks' share, (batch, heads, queries, d_value); 0 in empty rows, as the kernels have it.

    Args:
        inputs: the attention, in whose cache the lse stays.
        prepared: the same, prepared.
        v: (batch, kv_heads, keys, d_value), in the dtype of the prepared call.
    """
    if prepared.fused:
        rows, lse = prepared.attend(v)
        cache_lse(inputs, prepared, lse)
    else:
        rows = prepared.output(v)
    if prepared.sinks is None:
        return rows
    share = prepared.row_sums(prepared_lse(inputs, prepared))
    assert share is not None
    return rows * share[..., None]


def attribution(inputs: AttentionInputs, grad: Tensor) -> Attribution:
    """See `AttentionMap.attribution`.

    Raises:
        TypeError: as `check_grad` does, and so the other errors.
        ValueError: the map has no values, or these, q or k hold NaN or infinity.
    """
    v = inputs.finite_v("attribution")
    check_grad(inputs, grad)
    if 0 in inputs.shape:
        by_query = torch.zeros(inputs.shape[:3], dtype=inputs.answer_dtype, device=inputs.device)
        return Attribution(by_query, *by_query.new_zeros(2, *inputs.shape[:2], inputs.shape[3]))
    prepared = prepare(inputs)
    dtype = prepared.call.q.dtype
    v, grad = v.to(dtype), grad.to(dtype)
    by_query = (grad * output(inputs, prepared, v)).sum(-1)
    sums = received_values(prepared, log_denominator(inputs, prepared), torch.cat([grad, by_query[..., None]], -1))
    # Each query head has its own gradient of a value that several of them share.
    dv = sums[..., :-1].unflatten(1, (v.shape[1], -1))  # type: ignore[no-untyped-call]
    by_key = (dv * v[:, :, None]).sum(-1).flatten(1, 2)
    return Attribution(*(t.to(inputs.answer_dtype) for t in (by_query, by_key, by_key - sums[..., -1])))


def check_grad(inputs: AttentionInputs, grad: Tensor) -> None:
    """Refuse what is no gradient of the output.

    Raises:
        TypeError: not a floating-point tensor.
        ValueError: another shape than the output; NaN or infinity.
    """
    if not isinstance(grad, Tensor) or not grad.is_floating_point():
        raise TypeError(f"grad must be a floating-point tensor, d metric / d output of this attention; got {grad!r}")
    assert inputs.v is not None
    shape = (*inputs.shape[:3], inputs.v.shape[-1])
    if tuple(grad.shape) != shape:
        raise ValueError(
            f"grad must be {shape} (batch, heads, queries, d_value), as the output of this attention is, before the "
            f"heads are joined and projected; got {tuple(grad.shape)}"
        )
    if not bool(grad.isfinite().all()):
        raise ValueError("grad holds NaN or infinity: the metric has no gradient there")


def value_norms(inputs: AttentionInputs, projection: Tensor | None) -> Tensor:
    """|v_j|, or |v_j W_O^h| with the projection W_O: (batch, heads, keys); see `AttentionMap.value_weighted`.

    Raises:
        TypeError: a projection that is not a floating-point tensor.
        ValueError: no values, or with NaN or infinity; a projection of another shape.
    """
    v = inputs.finite_v("value_weighted")
    heads, width = inputs.shape[1], v.shape[-1]
    v = v.to(inputs.answer_dtype)
    if projection is None:
        norms: Tensor = torch.linalg.vector_norm(v, dim=-1)
        return norms.repeat_interleave(heads // v.shape[1], 1)
    if not isinstance(projection, Tensor) or not projection.is_floating_point():
        raise TypeError(
            f"projection must be W_O, a floating-point tensor such as layer.o_proj.weight; got {projection!r}"
        )
    if projection.ndim != 2 or projection.shape[1] != heads * width:
        raise ValueError(
            f"projection must be (d_model, {heads * width}), W_O as the weight of nn.Linear, {width} columns for each "
            f"of {heads} heads; got {tuple(projection.shape)}. GPT-2's Conv1D has it transposed: pass weight.T"
        )
    by_head = projection.detach().double().unflatten(1, (heads, width)).transpose(0, 1)  # type: ignore[no-untyped-call]
    # W = Q R with orthogonal columns of Q, so |W v| = |R v|: no vector of d_model numbers is made for each key.
    r = torch.linalg.qr(by_head, mode="r").R.to(v.dtype)
    projected = grouped_matmul(r.expand(len(v), -1, -1, -1), v.transpose(-1, -2))
    norms = torch.linalg.vector_norm(projected, dim=-2)
    return norms
