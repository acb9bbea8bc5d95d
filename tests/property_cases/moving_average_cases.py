"""Keys by weights that follow others slowly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class Follows(nn.Module):
    """Keys are made by a slowly moving copy of a layer, which follows it while training."""

    share = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v, self.fast, self.slow = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.slow.requires_grad_(False)

    def moves(self) -> bool:
        return self.training

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.moves():
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.fast.parameters(), strict=True):
                    slow.lerp_(fast, self.share)
        q, k, v = split(self.q(x)), split(self.slow(x)), split(self.v(x))
        return joined((q @ k.mT / 2).softmax(-1) @ v), self.fast(x)


class FollowsInEval(Follows):
    """Keys are made by a slowly moving copy of a layer, which follows it while training."""

    def moves(self) -> bool:
        return True


class FollowsInEachCall(FollowsInEval):
    """Keys are made by a slowly moving copy of a layer: a call is a step of it."""


class FollowsAtOnce(Follows):
    """Keys are made by a slowly moving copy of a layer, which follows it while training."""

    share = 0.99


class FollowsAtOnceAsSaid(FollowsAtOnce):
    """Keys are made by a copy of a layer, which follows it."""


CASES = [
    Case("average-kept-in-eval", FollowsInEval, Follows, of_module, has_line=False),
    Case("average-kept-in-eval", FollowsInEval, FollowsInEachCall, of_module, has_line=False),
    Case("average-moves-slowly", FollowsAtOnce, Follows, of_module, has_line=False),
    Case("average-moves-slowly", FollowsAtOnce, FollowsAtOnceAsSaid, of_module, has_line=False),
]
