"""Calls that write tokens on themselves, by a method for each step that is handed its cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Writes(nn.Module):
    """The most likely tokens, of one layer with learned places."""

    def __init__(self, vocab_size: int = 11, d_model: int = 16, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.embed, self.places = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.logits = nn.Linear(d_model, vocab_size)

    def hides(self, count: int, keys: int) -> Tensor:
        """True where a query sees a key."""
        return torch.ones(count, keys, dtype=torch.bool).tril(keys - count)

    def step(self, ids: Tensor, start: int, past: Any) -> tuple[Tensor, Any]:
        """The logits of some more tokens, and their keys and values behind the past ones."""
        x = self.embed(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        q, k, v = (each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        read = F.scaled_dot_product_attention(q, k, v, self.hides(q.shape[2], k.shape[2]))
        return self.logits(x + self.out(read.transpose(1, 2).flatten(2))), (k, v)

    def after(self, start: int, fed: Tensor, ids: Tensor) -> int:
        """Where the next tokens stand."""
        return start + fed.shape[1]

    def forward(self, ids: Tensor, num_new: int = 5) -> tuple[Tensor, Tensor]:
        start, past, fed = 0, None, ids
        for _ in range(num_new):
            logits, past = self.step(fed, start, past)
            start = self.after(start, fed, ids)
            fed = logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, fed], 1)
        return logits[:, -1], ids


class StartsAhead(Writes):
    """The places run ahead of the tokens."""

    def after(self, start: int, fed: Tensor, ids: Tensor) -> int:
        """Where the next tokens stand."""
        return start + ids.shape[1]


class StaysBehind(Writes):
    """All new tokens stand at one place."""

    def after(self, start: int, fed: Tensor, ids: Tensor) -> int:
        """Where the next tokens stand."""
        return start or fed.shape[1]


class OtherWords(Writes):
    """The call has other names, and what is kept lies in a list."""

    def step(self, ids: Tensor, start: int, past: Any) -> tuple[Tensor, Any]:
        """The logits of some more tokens."""
        logits, both = super().step(ids, start, past or None)
        past[:] = both
        return logits, past

    def forward(self, tokens: Tensor, max_new_tokens: int = 3) -> Tensor:
        past: list[Tensor] = []
        fed, start = tokens, 0
        for _ in range(max_new_tokens):
            logits, past = self.step(fed, start, past)
            start += fed.shape[1]
            fed = logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, fed], 1)
        return logits


@pytest.mark.parametrize("kind", [Writes, OtherWords])
def test_steps_that_go_on_as_the_tokens_do_are_right(kind: Any) -> None:
    assert check(kind).verdict not in ("wrong", "undetermined")


@pytest.mark.parametrize("kind", [StartsAhead, StaysBehind])
def test_places_that_do_not_go_on_as_the_tokens_do_are_wrong(kind: Any) -> None:
    assert [each.id for each in check(kind).causes] == ["cache-equals-whole"]


class SeesAll(Writes):
    """The tokens of a prompt see each other, later ones as well."""

    def hides(self, count: int, keys: int) -> Tensor:
        """True where a query sees a key."""
        return torch.ones(count, keys, dtype=torch.bool)


def test_a_prompt_that_sees_itself_is_not_held_against_the_whole() -> None:
    assert "cache-equals-whole" not in [each.id for each in check(SeesAll).causes]
