"""Several samples of each item, which share what is added to their scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class ItemByItem(nn.Module):
    """s = torch.cat([s_item] * count): the first samples of all items stand before the second ones."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.of_pairs = nn.Linear(3, 2)

    def attended(self, s: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split(each(s)) for each in (self.q, self.k, self.v))
        scores = (q @ k.mT / q.shape[-1] ** 0.5 + bias).masked_fill(~mask[:, None, None], -torch.inf)
        return self.out(joined(scores.softmax(-1) @ v))

    def forward(self, s: Tensor, z: Tensor, mask: Tensor, count: int = 1) -> Tensor:
        return self.attended(s, self.of_pairs(z).movedim(-1, 1).repeat_interleave(count, 0), mask)


class InTurn(ItemByItem):
    """s = torch.cat([s_item] * count)"""

    def forward(self, s: Tensor, z: Tensor, mask: Tensor, count: int = 1) -> Tensor:
        return self.attended(s, self.of_pairs(z).movedim(-1, 1).repeat(count, 1, 1, 1), mask)


def of_items(kind: Any) -> Invocation:
    """A call of a module with one sample of each of two items."""
    module = kind()
    prepare(module, 1)
    arguments = {
        "s": drawn(2, 4, WIDTH, seed=0),
        "z": drawn(2, 4, 4, 3, seed=1),
        "mask": torch.ones(2, 4, dtype=torch.bool),
    }
    return Invocation(module, arguments, [], [Stream("s", "x", 0, (1,))], masks=["mask"])


CASES = [Case("samples-of-their-item", ItemByItem, InTurn, of_items, has_line=False)]
