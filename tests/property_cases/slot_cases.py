"""Slots that read from tokens what they compete for."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module


class SlotAttention(nn.Module):
    """One step of it, from slots of which each has a place of its own."""

    axis = 1

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.slots = nn.Parameter(drawn(3, WIDTH, seed=0))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(self.slots) @ self.k(x).mT / WIDTH**0.5
        weights = scores.softmax(self.axis) + 1e-8  # here
        return (weights / weights.sum(-1, keepdim=True)) @ self.v(x)


class SlotAttentionOverTokens(SlotAttention):
    axis = -1


class PoolingByQueries(SlotAttention):
    """Learned queries, each of which reads from all tokens by itself."""

    axis = -1


CASES = [
    Case("slots-compete", SlotAttentionOverTokens, right, of_module) for right in (SlotAttention, PoolingByQueries)
]
