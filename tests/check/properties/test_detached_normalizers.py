"""Gradients of normalizers, held against how these change."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import of_module
from property_cases.gradient_cases import SummariesLessTheLargest, SummariesOfDetachedKeys
from regard.check.properties.weights.detached_normalizers import detached_normalizer_findings


class SummariesWithAnEpsilon(SummariesLessTheLargest):
    """Beside exponentials that are small an epsilon is no small part: what is subtracted counts (Performer)."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)) for each in self.qkv(x).chunk(3, -1))
        q, k = ((each - each.amax((1, 3), keepdim=True).detach()).exp() + 1 for each in (q, k))
        read = torch.einsum("bnhd,bhde->bnhe", q, torch.einsum("bnhd,bnhe->bhde", k, v))
        return (read * (1 / self.normalizer(q, k))).flatten(2)


def test_a_maximum_that_is_detached_may_change_a_quotient() -> None:
    assert not list(detached_normalizer_findings(of_module(SummariesWithAnEpsilon)))
    assert list(detached_normalizer_findings(of_module(SummariesOfDetachedKeys)))
