"""Weights that are no choice: of a softmax over one number, and of keys and values that an einsum sums apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class PooledOverTokens(nn.Module):
    """Each sample is a weighted mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(1)
        return (self.values(x) * weights).sum(1)


class PooledByOne(nn.Module):
    """The same by one number of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(-1)  # here
        return (self.values(x) * weights).sum(1)


class OfOneHead(PooledByOne):
    """Tokens that several heads share between them, of which there is one."""

    def __init__(self, num_heads: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(-1)
        return x + self.values(x) * weights


class Linear(nn.Module):
    """Linear attention (Katharopoulos et al. 2020)."""

    text = "bhse,bhsd->bhed"

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        state = torch.einsum(self.text, k, v)  # here
        return joined(torch.einsum("bhme,bhed,bhm->bhmd", q, state, 1 / (q @ k.sum(2)[..., None])[..., 0]))


class LinearOfTwoLetters(Linear):
    text = "bhse,bhld->bhed"


CASES = [
    Case("softmax-over-keys", PooledByOne, PooledOverTokens, of_module),
    Case("values-summed", LinearOfTwoLetters, Linear, of_module),
]
