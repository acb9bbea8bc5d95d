"""Units that begin with the same numbers: where they also get the same gradient, they stay one and the same."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


class Constant(nn.Module):
    """Attention of which each matrix begins with one number everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        for each in (self.qkv, self.out):
            nn.init.constant_(each.weight, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return self.out(joined((q @ k.mT / 2).softmax(-1) @ v))


class ConstantAtTheEnd(Constant):
    """The same of which only the first matrix is drawn: rows of the last one get gradients of their own."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.qkv.weight)


class HeadsAlike(Constant):
    """All heads begin as the first one, and so does what the last matrix makes of each."""

    def __init__(self) -> None:
        super().__init__()
        parts = torch.randn(3, 1, WIDTH // HEADS, WIDTH).expand(-1, HEADS, -1, -1)
        self.qkv.weight.data = parts.reshape(3 * WIDTH, WIDTH)
        self.out.weight.data = torch.randn(WIDTH, WIDTH // HEADS).repeat(1, HEADS)


class HeadsAlikeReadApart(HeadsAlike):
    """The same whose last matrix is drawn: each head gets a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.out.weight)


class Summary(nn.Module):
    """Learned tokens gather what the sequence says, and the sequence reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(1, 3, WIDTH))
        self.gather = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.read = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        gathered, _ = self.gather(self.tokens.expand(len(x), -1, -1), x, x)
        return self.read(x, gathered, gathered)[0]


class SummaryOfDrawnTokens(Summary):
    """The same whose tokens begin as random numbers."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.tokens)


class Placed(nn.Module):
    """Attention whose places begin as zeros: each of them has a token of its own, and a gradient by it."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(1, 16, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places[:, : x.shape[1]]
        return self.attention(x, x, x)[0]


class Seeded(nn.Module):
    """A matrix that is drawn by numpy."""

    def __init__(self) -> None:
        super().__init__()
        numbers = self.generator().uniform(-0.3, 0.3, (WIDTH, WIDTH))
        self.weight = nn.Parameter(torch.from_numpy(numbers).float())

    def generator(self) -> Any:
        return np.random

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class SeededAnew(Seeded):
    """The same, each with the first numbers of one seed."""

    def __init__(self) -> None:
        np.random.seed(1)
        super().__init__()


class OfOwnMatrices(nn.Module):
    """Attention of four matrices."""

    kind: type[nn.Module] = Seeded

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (self.kind() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return self.out(joined((q @ k.mT / 2).softmax(-1) @ v))  # type: ignore[no-any-return]


class OfOneSeed(OfOwnMatrices):
    kind = SeededAnew


class SeedsItself(OfOwnMatrices):
    """It sets the seed once: its matrices are drawn one after the other."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        super().__init__()


class OfCopies(OfOwnMatrices):
    """Copies of one layer, which are drawn anew where a model is made; the seed is set once."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.k, self.v, self.out = (copy.deepcopy(self.q) for _ in range(3))


CASES = [
    Case("drawn-apart", OfOneSeed, OfOwnMatrices, of_module, has_line=False),
    Case("drawn-apart", OfOneSeed, SeedsItself, of_module, has_line=False),
    Case("drawn-apart", OfOneSeed, OfCopies, of_module, has_line=False),
    Case("begins-apart", Constant, ConstantAtTheEnd, of_module, has_line=False),
    Case("begins-apart", HeadsAlike, HeadsAlikeReadApart, of_module, has_line=False),
    Case("begins-apart", Constant, Placed, of_module, has_line=False),
    Case("begins-apart", Summary, SummaryOfDrawnTokens, of_module, has_line=False, attentions=2),
]
