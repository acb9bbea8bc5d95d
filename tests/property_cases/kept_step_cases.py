"""Modules that keep keys and values between their calls: a method for one token, and a text written after another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, split
from property_cases.masked_label_cases import WORDS, of_words

PLACES = drawn(32, WIDTH, seed=47)


class Resumes(nn.Module):
    """A prompt is read by the call, and each token behind it by next_token()."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        q, *self.kept = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined(F.scaled_dot_product_attention(q, *self.kept, is_causal=True))

    def next_token(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        self.kept = [torch.cat([old, new], 2) for old, new in zip(self.kept, self.written(k, v), strict=True)]
        return joined(F.scaled_dot_product_attention(q, *self.kept))

    def written(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v


class KeysTwice(Resumes):
    def written(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, k


class OfRecentTokens(KeysTwice):
    """A prompt is read by the call; next_token() has another budget."""


class Tells(nn.Module):
    """A causal model of words that keeps its keys and values while it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WORDS),
        )
        self.kept: Tensor | None = None
        self.double()

    def read(self, ids: Tensor, first: int) -> Tensor:
        x = self.words(ids) + PLACES[first : first + ids.shape[1]]
        q, new = self.qkv(x).split([WIDTH, 2 * WIDTH], -1)
        self.kept = new if self.kept is None else torch.cat([self.kept, new], 1)
        k, v = self.kept.chunk(2, -1)
        later = torch.ones(q.shape[1], k.shape[1]).triu(1 + k.shape[1] - q.shape[1]) == 1
        return self.head(x + (q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Tensor:
        self.kept = None
        logits = self.read(ids, 0)
        self.kept = None
        return logits

    def begin(self) -> None:
        self.kept = None

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        self.begin()
        logits = self.read(ids, 0)
        for _ in range(max_new_tokens):
            new = logits[:, -1:].argmax(-1)
            logits = self.read(new, ids.shape[1])
            ids = torch.cat([ids, new], 1)
        return ids


class TellsOn(Tells):
    def begin(self) -> None:
        pass


class TellsOnInASession(TellsOn):
    """A causal model of words: its texts are those of one conversation."""


class DecodesOn(Resumes):
    """Each token of decode_step() is read behind those before, until forget()."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def decode_step(self, x: Tensor) -> Tensor:
        self.kept = self.kept or [torch.zeros(len(x), 2, 0, WIDTH // 2).double()] * 2
        return self.next_token(x)


class ReadsAPrompt(Resumes):
    """prefill() reads a prompt into places, which next_token() goes on with."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.places = torch.zeros(2, 2, 2, 8, WIDTH // 2).double()

    def read(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        end = self.length + x.shape[1]
        self.places[:, :, :, self.length : end] = torch.stack([k, v])
        self.length += self.counted(x)
        later = torch.ones(x.shape[1], end).triu(1 + end - x.shape[1]) == 1
        scores = (q @ self.places[0, :, :, :end].mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return joined(scores.softmax(-1) @ self.places[1, :, :, :end])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    @torch.no_grad()
    def prefill(self, x: Tensor) -> Tensor:
        self.length = 0
        return self.read(x)

    @torch.no_grad()
    def next_token(self, x: Tensor) -> Tensor:
        return self.read(x)

    def counted(self, x: Tensor) -> int:
        return x.shape[1]


class CountsCalls(ReadsAPrompt):
    def counted(self, x: Tensor) -> int:
        return 1


class SumsGoOn(nn.Module):
    """Linear attention; begin(), and then step() for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        return q.exp(), k.exp(), v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.features(x)
        sums = (k[..., None] * v[..., None, :]).cumsum(1)
        read = (q[..., None, :] @ sums).squeeze(-2)
        return self.out(read / (q * k.cumsum(1)).sum(-1, keepdim=True))  # type: ignore[no-any-return]

    def begin(self) -> None:
        self.sums, self.keys = torch.zeros(2, 1, WIDTH, WIDTH).double(), torch.zeros(2, 1, WIDTH).double()

    def step(self, x: Tensor) -> Tensor:
        q, k, v = self.features(x)
        self.sums, self.keys = self.sums + k[..., None] * v[..., None, :], self.summed(k)
        read = (q[..., None, :] @ self.sums).squeeze(-2)
        return self.out(read / (q * self.keys).sum(-1, keepdim=True))  # type: ignore[no-any-return]

    def summed(self, k: Tensor) -> Tensor:
        return self.keys + k


class NewKeysAlone(SumsGoOn):
    def summed(self, k: Tensor) -> Tensor:
        return k


CASES = [
    Case("kept-steps-equal-whole", CountsCalls, ReadsAPrompt, of_module, has_line=False),
    Case("kept-steps-equal-whole", KeysTwice, DecodesOn, of_module, has_line=False),
    Case("kept-steps-equal-whole", NewKeysAlone, SumsGoOn, of_module, has_line=False),
    Case("kept-steps-equal-whole", KeysTwice, Resumes, of_module, has_line=False),
    Case("kept-steps-equal-whole", KeysTwice, OfRecentTokens, of_module, has_line=False),
    Case("begun-anew", TellsOn, Tells, of_words, has_line=False),
    Case("begun-anew", TellsOn, TellsOnInASession, of_words, has_line=False),
]
