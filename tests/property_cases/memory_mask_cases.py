"""A memory of the states before a segment, and the causal mask of both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class WithAMemory(nn.Module):
    """Keys and values are those of the memory, in front, and of the segment."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        both = x if memory is None else torch.cat([memory, x], 1)
        hidden = self.hidden(x.shape[1], both.shape[1])
        scores = (split(self.q(x)) @ split(self.k(both)).mT / 2).masked_fill(hidden, -torch.inf)
        return x + joined(scores.softmax(-1) @ split(self.v(both))), x.detach()

    def hidden(self, queries: int, keys: int) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


class MaskFromTheMemory(WithAMemory):
    def hidden(self, queries: int, keys: int) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).triu(1)


class SeesAWindow(WithAMemory):
    """The last tokens alone, those of its segment among them."""

    def hidden(self, queries: int, keys: int) -> Tensor:
        window = torch.ones(queries, keys, dtype=torch.bool)
        return super().hidden(queries, keys) | window.tril(keys - 2 * queries)


class ReadsAContext(WithAMemory):
    """What is handed over is another sequence, and it is returned as it is."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        other = x if memory is None else memory
        scores = split(self.q(x)) @ split(self.k(other)).mT / 2
        return x + joined(scores.softmax(-1) @ split(self.v(other))), scores


CASES = [
    Case("memory-beside-tokens", MaskFromTheMemory, right, of_module, has_line=False)
    for right in (WithAMemory, SeesAWindow, ReadsAContext)
]
