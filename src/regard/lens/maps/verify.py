"""Whether a map is the model's own: its lse, and its output on sampled rows."""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor

from regard.lens.maps.indexing import ExactRows, HeadCache
from regard.lens.maps.inputs import AttentionInputs, OutputSample

MAX_ERROR, MAX_HALF_ERROR = 1e-3, 2e-2
"""The largest error of a verified map: of a model in float32 or float64, and of one in half precision."""

HIDING_SCORE = -1e4
"""A row whose scores are all below this, by a bias, is one of padding: float32 rounds such numbers by 1e-3."""

LSE_CHECK_ROWS, MAX_LSE_ERROR = 16, 1e-4
"""The number of rows on which an lse from the model's kernel is checked, and the largest difference."""


def lse_matches(inputs: AttentionInputs, lse: Tensor, empty_rows: Tensor | None) -> bool:
    """Whether the lse of the model's kernel is that of these inputs, on some rows; empty rows do not count."""
    valid = lse.isfinite() if empty_rows is None else lse.isfinite() | empty_rows
    if not bool(valid.all()):
        return False
    exact = ExactRows(inputs)
    n = torch.arange(LSE_CHECK_ROWS, device=inputs.device)
    b, h, i = (n * size // LSE_CHECK_ROWS for size in inputs.shape[:3])
    if empty_rows is not None:
        b, h, i = (t[~empty_rows[b, h, i]] for t in (b, h, i))
    return all(
        bool(((exact.scores(*rows).logsumexp(-1) - lse[rows]).abs() < MAX_LSE_ERROR).all())
        for rows in zip(*(torch.split(t, exact.chunk_rows) for t in (b, h, i)), strict=True)
    )


def max_error(inputs: AttentionInputs, sample: OutputSample, v: Tensor) -> float:
    """See `AttentionMap.error`."""
    exact, values = ExactRows(inputs), HeadCache(v, inputs.shape[1])
    heads, device = inputs.shape[1], inputs.device
    batch, query = (t.to(device) for t in (sample.batch, sample.query))
    ours = torch.zeros(len(batch), heads, v.shape[-1], dtype=torch.float64, device=device)
    empty = torch.zeros(len(batch), heads, dtype=torch.bool, device=device)
    n, h = (
        t.flatten() for t in torch.meshgrid(*(torch.arange(s, device=device) for s in ours.shape[:2]), indexing="ij")
    )
    order = (batch[n] * heads + h).argsort(stable=True)  # rows with the same keys are adjacent
    for chunk in torch.split(order, exact.chunk_rows):
        row, head = n[chunk], h[chunk]
        weights = exact.weights(batch[row], head, query[row])
        empty[row, head] = ~weights.any(-1) | _is_padding(exact, batch[row], head, query[row])
        if sample.dropout_factor is not None:
            weights *= sample.dropout_factor[row, head].double()
        parts = [_weighted_sum(weights[rows], head_values) for rows, head_values in values.runs(batch[row], head)]
        ours[row, head] = torch.cat(parts)
    output, theirs = ours, sample.output.double()
    if sample.transform is not None:
        # Of this output no part is one head's.
        output, empty = sample.transform(ours.to(v.dtype)), empty.any(-1)
    difference, size = (t[~empty].abs().flatten() for t in (output.double() - theirs, theirs))
    if not difference.numel():
        return nan
    largest = float(size.max())
    return float(difference.max()) / largest if largest else float(difference.max())


def _is_padding(exact: ExactRows, b: Tensor, h: Tensor, i: Tensor) -> Tensor:
    """Rows that a bias such as -1e9 hides from every key: rounding to it removed the scores from the model's output."""
    if not isinstance(exact.call.bias, Tensor):
        return torch.zeros(len(b), dtype=torch.bool, device=b.device)
    return exact.scores(b, h, i).amax(-1) < HIDING_SCORE


def _weighted_sum(weights: Tensor, v: Tensor) -> Tensor:
    """Weights @ v; NaN or infinity in a value of weight 0 does not count."""
    if bool(v.isfinite().all()):
        return weights @ v
    return torch.stack([row @ v.masked_fill((row == 0)[:, None], 0.0) for row in weights])
