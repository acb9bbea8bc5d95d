"""Learned queries that read one token of each sample: their rows are of no sample, and may stand in any order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, of_module
from regard.check.properties.analyze import analyze


class OfOnePlace(nn.Module):
    """The tokens come to one place of each sample, which five learned queries read, as in DETR."""

    def __init__(self) -> None:
        super().__init__()
        self.asks = nn.Parameter(torch.randn(5, 1, WIDTH))
        self.read = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.nn.functional.layer_norm(x, x.shape[1:]).sum(1)[None]
        asks = self.asks.expand(-1, len(x), -1)
        return (asks + self.read(asks, 2 * place, place)[0]).transpose(0, 1)


def test_the_rows_of_learned_queries_are_of_the_sample_that_they_read() -> None:
    assert analyze(of_module(OfOnePlace)).violations == []
