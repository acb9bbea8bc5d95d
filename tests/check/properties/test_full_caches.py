"""Caches that keep the last tokens alone: positions go on by the tokens that were seen, or by places in the cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check.properties.analyze import analyze
from regard.check.target import invocations
from regard.check.target.preparation import prepare

WIDTH, HEADS = 16, 2


def turned(x: Tensor, first: int) -> Tensor:
    places = torch.arange(first, first + x.shape[-2]).double()
    angles = places[:, None] * 100.0 ** -torch.linspace(0, 1, x.shape[-1] // 2).double()
    one, other = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


class LastTokensCache:
    """Keeps the last tokens."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.seen = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += k.shape[2]
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        self.keys, self.values = k[:, :, -self.budget :], v[:, :, -self.budget :]
        return k, v

    def kept(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]


class BySeen(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def first(self, cache: LastTokensCache) -> int:
        return cache.seen

    def forward(self, x: Tensor, cache: LastTokensCache | None = None) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        first = self.first(cache) if cache is not None else 0
        q, k = turned(q, first), turned(k, first)
        if cache is not None:
            k, v = cache.update(k, v)
        return self.attended(q, k, v)

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(q.shape[2], k.shape[2]).triu(1 + k.shape[2] - q.shape[2]) > 0
        scores = (q @ k.mT / (WIDTH // HEADS) ** 0.5).masked_fill(hidden, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ByKept(BySeen):
    """Causal attention."""

    def first(self, cache: LastTokensCache) -> int:
        return cache.kept()


class ByPlaces(BySeen):
    """Causal attention: keys are kept as they are, and rotated at their places in the cache."""

    def forward(self, x: Tensor, cache: LastTokensCache | None = None) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if cache is not None:
            k, v = cache.update(k, v)
        return self.attended(turned(q, k.shape[2] - q.shape[2]), turned(k, 0), v)


class WithoutPlaces(ByKept):
    """Causal attention: the keys of a cache stand beside the new ones, whatever was dropped."""

    def forward(self, x: Tensor, cache: LastTokensCache | None = None) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if cache is not None:
            k, v = cache.update(k, v)
        return self.attended(q, k, v)


class ByKeysOfTheCache(ByKept):
    """Causal attention."""

    def first(self, cache: LastTokensCache) -> int:
        return 0 if cache.keys is None else min(cache.seen, cache.keys.size(-2))


def violated(kind: type[nn.Module]) -> set[str]:
    torch.manual_seed(0)
    module = kind()
    prepare(module, 1)
    return {each.property for each in analyze(next(invocations(module, args={}))).violations}


@pytest.mark.parametrize("kind", [BySeen, ByPlaces, WithoutPlaces])
def test_positions_that_go_on_where_tokens_were_dropped_are_right(kind: type[nn.Module]) -> None:
    assert violated(kind) == set()


@pytest.mark.parametrize("kind", [ByKept, ByKeysOfTheCache])
def test_a_full_cache_has_no_more_tokens_than_it_keeps(kind: type[nn.Module]) -> None:
    assert violated(kind) == {"cache-positions"}
