"""Modules that say that they keep earlier tokens, and caches that are written in place while a text is generated."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, of_module
from regard.check import check
from regard.check.properties.analyze import analyze
from regard.check.properties.caches.promised_memory import is_made_for_generation, promises_memory


class KeepsEarlier(nn.Module):
    """Attention of one new token; the keys and values of earlier tokens are kept."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.cache = nn.Linear(dim, 3 * dim), None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.cache is not None:
            k, v = (torch.cat([before, new], 1) for before, new in zip(self.cache, (k, v), strict=True))
        self.cache = k, v
        return (q @ k.mT / math.sqrt(k.shape[-1])).softmax(-1) @ v


class KeepsWithoutAWord(KeepsEarlier):
    """Attention of a sequence."""


def test_what_is_said_to_be_kept_is_kept_on_purpose() -> None:
    assert check(KeepsEarlier, args={"dim": 16}).verdict == "right"
    assert check(KeepsWithoutAWord, args={"dim": 16}).verdict == "wrong"


class WithoutASentence(nn.Module):
    """In the first step there is nothing to weigh: what is returned is its own value, projected."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        keys, values = (torch.zeros(len(x), HEADS, x.shape[1], WIDTH // HEADS, dtype=x.dtype) for _ in range(2))
        outputs = []
        for at in range(x.shape[1]):
            q, k, v = self.qkv(x[:, at]).view(len(x), 3, HEADS, -1).unbind(1)
            keys[:, :, at], values[:, :, at] = k, v
            outputs.append(self.out((self.read(q, keys[:, :, : at + 1], values) if at else v).flatten(1)))
        return torch.stack(outputs, 1)

    def read(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = torch.einsum("bhd,bhnd->bhn", q, keys) / math.sqrt(q.shape[-1])
        return torch.einsum("bhn,bhnd->bhd", scores.softmax(-1), values[:, :, : keys.shape[2]])


class WithACache(WithoutASentence):
    """Token by token with a cache; caching does not change the results."""


def test_a_cache_that_is_written_in_place_is_not_trained_where_it_says_so() -> None:
    assert not analyze(of_module(WithACache)).violations
    assert [each.property for each in analyze(of_module(WithoutASentence)).violations] == ["gradients-computed"]


def said(text: str) -> object:
    def call(x: Tensor) -> Tensor:
        return x

    call.__doc__ = text
    return call


def test_sentences() -> None:
    assert promises_memory(said("Softmax attention, the keys and values of earlier tokens kept"))
    assert promises_memory(said("Caches the keys of previous steps."))
    assert not promises_memory(said("The keys of earlier tokens are not kept."))
    assert not promises_memory(said("A query sees earlier tokens."))
    assert is_made_for_generation(said("Decoding with a KV cache."))
    assert not is_made_for_generation(said("Causal attention."))
