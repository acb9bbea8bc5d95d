"""Learned vectors or numbers of the distance of two tokens, which is negative for one side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x, split
from property_cases import joined as merged
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

FARTHEST = 2


class Distances(nn.Module):
    """A learned vector for each clipped distance, from -2 to 2."""

    entries = 2 * FARTHEST + 1

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.vectors = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(self.entries, WIDTH // 2))

    def apart(self, tokens: int) -> Tensor:
        places = torch.arange(tokens)
        return (places[None] - places[:, None]).clamp(-FARTHEST, FARTHEST)

    def index(self, tokens: int) -> Tensor:
        return self.apart(tokens) + FARTHEST

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        vectors = self.vectors[self.index(x.shape[1])]  # here
        scores = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, vectors)
        return merged(self.hidden(scores / 2).softmax(-1) @ v)

    def hidden(self, scores: Tensor) -> Tensor:
        return scores


class FromTheEnd(Distances):
    """Those of keys before the query are the last ones."""

    def index(self, tokens: int) -> Tensor:
        return self.apart(tokens)


class ByTheirNumber(Distances):
    """A key ahead counts as one that is as far back."""

    entries = FARTHEST + 1

    def index(self, tokens: int) -> Tensor:
        return self.apart(tokens).abs()


class OfCausalAttention(FromTheEnd):
    """Each query sees what came before it: what is ahead is hidden, whatever it reads."""

    entries = FARTHEST + 1

    def index(self, tokens: int) -> Tensor:
        return -self.apart(tokens)

    def hidden(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


class TooFew(FromTheEnd):
    entries = FARTHEST + 1


def of_five(kind: Any) -> Invocation:
    """A call of a module, of five tokens."""
    module = kind()
    prepare(module, 1)
    return of_x(module, tokens=5)


CASES = [
    Case("entry-of-each-offset", TooFew, right, of_five)
    for right in (Distances, FromTheEnd, ByTheirNumber, OfCausalAttention)
]
