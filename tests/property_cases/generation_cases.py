"""Texts that are written token by token with cached keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.masked_label_cases import WORDS, of_words

PLACES = drawn(24, WIDTH, seed=46)


class Writes(nn.Module):
    """A causal model that is told where its tokens stand."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, ids: Tensor, start: int = 0, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.words(ids) + PLACES[start : start + ids.shape[1]]).chunk(3, -1)
        both = torch.cat([k, v], -1) if cache is None else torch.cat([cache, torch.cat([k, v], -1)], 1)
        k, v = both.chunk(2, -1)
        later = torch.ones(q.shape[1], k.shape[1]).triu(1 + k.shape[1] - q.shape[1]) == 1
        read = (q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.head(self.words(ids) + read), both

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        cache, start, fed, text = None, 0, ids, ids
        for _ in range(max_new_tokens):
            logits, cache = self(fed, start, cache)
            start = self.next(start, fed)
            fed = logits[:, -1].argmax(-1, keepdim=True)
            text = torch.cat([text, fed], 1)
        return text

    def next(self, start: int, fed: Tensor) -> int:
        return start + fed.shape[1]


class RunsAhead(Writes):
    def next(self, start: int, fed: Tensor) -> int:
        return start + fed.shape[1] + (fed.shape[1] if start == 0 else 0)


class StaysBehind(Writes):
    def next(self, start: int, fed: Tensor) -> int:
        return start + 1


class ReadsAllAgain(StaysBehind):
    """Each step reads the whole text, and no cache."""

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            logits, _ = self(ids)
            ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return ids


class WritesIntoPlaces(Writes):
    """Keys and values have places, of PyTorch's default type, that its caller makes once."""

    def forward(self, ids: Tensor, start: int = 0, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        places = torch.zeros(len(ids), 24, 2 * WIDTH) if cache is None else cache
        q, k, v = self.qkv(self.words(ids) + PLACES[start : start + ids.shape[1]]).chunk(3, -1)
        end = start + ids.shape[1]
        places[:, start:end] = torch.cat([k, v], -1)
        k, v = places[:, :end].chunk(2, -1)
        later = torch.ones(q.shape[1], end).triu(1 + end - q.shape[1]) == 1
        read = (q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.head(self.words(ids) + read), places


class RunsAheadInPlaces(WritesIntoPlaces):
    def next(self, start: int, fed: Tensor) -> int:
        return start + fed.shape[1] + (fed.shape[1] if start == 0 else 0)


CASES = [
    Case("cache-equals-whole", RunsAheadInPlaces, WritesIntoPlaces, of_words, has_line=False),
    Case("cache-equals-whole", RunsAhead, Writes, of_words, has_line=False),
    Case("cache-equals-whole", StaysBehind, ReadsAllAgain, of_words, has_line=False),
]
