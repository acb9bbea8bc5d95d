"""Parameters that choose which tokens take part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from property_cases.surrounding_cases import Attention


class WithAnIndexer(Attention):
    """Of so few tokens all are chosen: the projection that chooses has no effect, and is used."""

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.placed(x)
        scores = split(self.q(x)) @ split(self.k(x)).mT / 2
        blocked = torch.ones_like(scores[:, 0], dtype=torch.bool).scatter(-1, self.chosen(x), False)
        return self.projected(joined(scores.masked_fill(blocked[:, None], -torch.inf).softmax(-1) @ self.values(x)))

    def chosen(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return (self.w_norm(self.w_q(x)) @ x.mT).topk(min(8, x.shape[1])).indices


class WithAnIndexerNotAsked(WithAnIndexer):
    def chosen(self, x: Tensor) -> Tensor:
        self.w_norm(self.w_q(x))
        return (x @ x.mT).topk(min(8, x.shape[1])).indices


CASES = [Case("projection-used", WithAnIndexerNotAsked, WithAnIndexer, of_module, has_line=False)]
