"""Masks that are handed over: which findings they give beside those of each property's case."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import of_q_k_v
from regard.check.properties.analysis import Analysis, analyze
from regard.check.properties.finding import Finding


def masks_of(analysis: Analysis) -> list[Finding]:
    return [each for each in analysis.findings if each.step == "mask"]


def two_masks(q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / 2
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    return scores.softmax(-1) @ v


def test_a_mask_of_queries_hides_no_key_and_stays_open() -> None:
    found = masks_of(analyze(of_q_k_v(two_masks, masks=("query_mask", "mask")), masks=True))
    assert {each.kind for each in found} == {"absent", "open", "holds"}
    assert "query_mask says of no key that it is hidden: not judged" in [
        each.message for each in found if each.kind == "open"
    ]
