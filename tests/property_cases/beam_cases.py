"""Beam searches of models that cache keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.masked_label_cases import WORDS, of_words
from property_cases.token_id_cases import PLACES

STEPS = 5


class Cached(nn.Module):
    """A causal model of one layer, and a search among several texts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, ids: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        before = 0 if cache is None else cache.shape[1]
        q, k, v = self.qkv(self.words(ids) + PLACES[before : before + ids.shape[1]]).chunk(3, -1)
        both = torch.cat([k, v], -1) if cache is None else torch.cat([cache, torch.cat([k, v], -1)], 1)
        k, v = both.chunk(2, -1)
        later = torch.ones(q.shape[1], k.shape[1]).triu(before + 1) == 1
        read = (q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.head(self.words(ids) + read), both

    def beam_search(self, ids: Tensor, beams: int = 4) -> tuple[Tensor, Tensor]:
        texts, cache = ids.repeat(beams, 1), None
        totals = torch.tensor([0.0] + [-1e9] * (beams - 1))[:, None].to(torch.float64)
        fed = texts
        for _ in range(STEPS):
            logits, cache = self(fed, cache)
            totals, flat = (totals + logits[:, -1].log_softmax(-1)).flatten().topk(beams)
            parents, fed, totals = flat // WORDS, (flat % WORDS)[:, None], totals[:, None]
            texts, cache = torch.cat([texts[parents], fed], 1), self.followed(cache, parents)
        return texts[:1], totals[0]

    def followed(self, cache: Tensor, parents: Tensor) -> Tensor:
        return cache[parents]


class LeftBehind(Cached):
    def followed(self, cache: Tensor, parents: Tensor) -> Tensor:
        return cache


class Greedy(LeftBehind):
    """Each text goes on by itself."""

    def beam_search(self, ids: Tensor, beams: int = 4) -> tuple[Tensor, Tensor]:
        texts, cache, fed = ids.repeat(beams, 1), None, ids.repeat(beams, 1)
        for _ in range(STEPS):
            logits, cache = self(fed, cache)
            fed = logits[:, -1].argmax(-1, keepdim=True)
            texts = torch.cat([texts, fed], 1)
        return texts[:1], texts[:1, -1]


class CachedFromTheFirst(Cached):
    """Begun with one token, of as many texts and as many steps as are told."""

    def beam_search(self, bos: int, beam: int, steps: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        assert steps > STEPS
        return super().beam_search(torch.full((1, 1), bos), beam)


class LeftBehindFromTheFirst(CachedFromTheFirst):
    def followed(self, cache: Tensor, parents: Tensor) -> Tensor:
        return cache


CASES = [
    Case("caches-follow-beams", LeftBehindFromTheFirst, CachedFromTheFirst, of_words, has_line=False),
    Case("caches-follow-beams", LeftBehind, Cached, of_words, has_line=False),
    Case("caches-follow-beams", LeftBehind, Greedy, of_words, has_line=False),
]
