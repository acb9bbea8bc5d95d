"""Hard attention: each query reads one key, and the softmax gets the gradient of that choice (straight-through)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module


class Hard(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def chosen(self, soft: Tensor, hard: Tensor) -> Tensor:
        return hard - soft.detach() + soft

    def forward(self, x: Tensor) -> Tensor:
        soft = (self.q(x) @ self.k(x).mT / WIDTH**0.5).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
        return self.chosen(soft, hard) @ self.v(x)


class HardInAnotherOrder(Hard):
    def chosen(self, soft: Tensor, hard: Tensor) -> Tensor:
        return soft + (hard - soft).detach()


class HardByASharperSoftmax(Hard):
    """The gradient is that of another softmax, of which the same is the largest."""

    def chosen(self, soft: Tensor, hard: Tensor) -> Tensor:
        soft = (4 * soft).softmax(-1)
        return hard - soft.detach() + soft


class Negated(Hard):
    def chosen(self, soft: Tensor, hard: Tensor) -> Tensor:
        return hard - soft + soft.detach()


CASES = [
    Case("gradient-of-the-choice", Negated, right, of_module, has_line=False)
    for right in (Hard, HardInAnotherOrder, HardByASharperSoftmax)
]
