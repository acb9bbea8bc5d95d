"""What is trained: by a backward pass of the code's own, and with dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class Weighted(torch.autograd.Function):
    """Values by weights that are normalized, with its own way back."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights, values)
        return weights @ values

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, Tensor]:
        weights, values = ctx.saved_tensors
        toward = above[0] @ values.mT
        return weights * (toward - (weights * toward).sum(-1, keepdim=True)), weights.mT @ above[0]


class WithoutTheSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights, values)
        return weights @ values

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, Tensor]:
        weights, values = ctx.saved_tensors
        return weights * (above[0] @ values.mT), weights.mT @ above[0]


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return self.out(joined(self.read(q @ k.mT / q.shape[-1] ** 0.5, v)))

    def read(self, scores: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class ByItsOwnWayBack(Trained):
    def read(self, scores: Tensor, v: Tensor) -> Tensor:
        return Weighted.apply(scores, v)  # type: ignore[no-any-return, no-untyped-call]


class ByAWrongWayBack(Trained):
    def read(self, scores: Tensor, v: Tensor) -> Tensor:
        return WithoutTheSum.apply(scores, v)  # type: ignore[no-any-return, no-untyped-call]


class ByAnotherWayBackOnPurpose(ByAWrongWayBack):
    """The way back is a surrogate, which takes the sum for a constant."""


class DropsWeights(Trained):
    def read(self, scores: Tensor, v: Tensor) -> Tensor:
        return self.drop(scores.softmax(-1)) @ v  # type: ignore[no-any-return]


class DropsNumbersBefore(Trained):
    def read(self, scores: Tensor, v: Tensor) -> Tensor:
        return self.drop(scores).softmax(-1) @ v  # type: ignore[no-any-return]  # here


class DropsThemOnPurpose(DropsNumbersBefore):
    """Dropout of the scores, not of the weights."""


CASES = [
    Case("gradient-of-the-whole", ByAWrongWayBack, ByItsOwnWayBack, of_module, has_line=False),
    Case("gradient-of-the-whole", ByAWrongWayBack, ByAnotherWayBackOnPurpose, of_module, has_line=False),
    Case("weights-dropped", DropsNumbersBefore, DropsWeights, of_module),
    Case("weights-dropped", DropsNumbersBefore, DropsThemOnPurpose, of_module),
]
