"""Edited rows compared with the definition in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.lens.maps.indexing import ExactRows, HeadCache
from regard.lens.maps.inputs import AttentionInputs

NUM_COMPARED_ROWS = 4
"""The number of edited queries, of the first batch row and of all heads, that are compared."""


@torch.no_grad()
def compare_with_definition(inputs: AttentionInputs, rows: Sequence[int], output: Tensor) -> float:
    """The largest difference of some edited rows from the definition in float64, by the largest output.

    Args:
        inputs: of the edited attention.
        rows: the queries that were edited.
        output: their output (batch, heads, rows, d_value).
    """
    assert inputs.v is not None
    if not output.numel():
        return 0.0
    count = min(len(rows), NUM_COMPARED_ROWS)
    places = [n * (len(rows) - 1) // max(1, count - 1) for n in range(count)]
    heads = inputs.shape[1]
    h = torch.arange(heads, device=inputs.device).repeat_interleave(count)
    i = torch.tensor([rows[place] for place in places] * heads, device=inputs.device)
    b = torch.zeros_like(h)
    exact, values = ExactRows(_detached(inputs)), HeadCache(inputs.v.detach(), heads)
    difference = largest = 0.0
    for chunk in torch.split(torch.arange(len(h), device=inputs.device), exact.chunk_rows):
        weights = exact.weights(b[chunk], h[chunk], i[chunk])
        ours = torch.cat([weights[part] @ v for part, v in values.runs(b[chunk], h[chunk])])
        theirs = output[0].detach()[:, places].flatten(0, 1)[chunk].double()
        difference = max(difference, float((ours - theirs).abs().max()))
        largest = max(largest, float(ours.abs().max()))
    return difference / largest if largest else difference


def _detached(inputs: AttentionInputs) -> AttentionInputs:
    return AttentionInputs(inputs.q, inputs.k, inputs.v, inputs.mask, **inputs.score_options)
