"""Block-sparse masks, which are told how many tokens a block has."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_x, split
from regard.check.target import Invocation

W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) / 3 for seed in (80, 81))
LAYOUT = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()


class TiledLayout(nn.Module):
    """Causal block-sparse attention: a block sees itself and the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.block = 2

    def forward(self, x: Tensor) -> Tensor:
        allowed = self.mask() & torch.ones(6, 6).tril().bool()
        q, k = split(x @ W_Q), split(x @ W_K)
        scores = q @ k.mT / 2  # here
        return joined(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ split(x))

    def mask(self) -> Tensor:
        return LAYOUT.repeat(self.block, self.block)


class EnlargedLayout(TiledLayout):
    """Causal block-sparse attention: a block sees itself and the first one."""

    def mask(self) -> Tensor:
        return LAYOUT.repeat_interleave(self.block, 0).repeat_interleave(self.block, 1)


class WithGlobalTokens(TiledLayout):
    """Block-sparse attention with a global token, the first one."""

    def mask(self) -> Tensor:
        places = torch.arange(6)
        return (places // 2 == places[:, None] // 2) | (places == 0)


class BandOfTokens(TiledLayout):
    """Attention of a token to those near it, computed in blocks."""

    def mask(self) -> Tensor:
        return torch.ones(6, 6).triu(-2).bool()


def of_six(kind: type[nn.Module]) -> Invocation:
    """A call of a module with three blocks of tokens."""
    return of_x(kind(), tokens=6)


CASES = [
    Case("blocks-whole", TiledLayout, EnlargedLayout, of_six),
    Case("blocks-whole", TiledLayout, WithGlobalTokens, of_six),
    Case("blocks-whole", TiledLayout, BandOfTokens, of_six),
]
