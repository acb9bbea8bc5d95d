"""Caches of a class that is not called one, and buffers of which code makes others with the new keys in them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check.properties.analyze import analyze
from regard.check.target import invocations

WIDTH, HEADS, LONGEST = 8, 2, 32


class Shelf:
    """What was read before, and how many tokens that were."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []
        self.count = 0

    def append(self, k: Tensor, v: Tensor, new: int) -> tuple[Tensor, Tensor]:
        self.parts.append((k, v))
        self.count += new
        return torch.cat([each for each, _ in self.parts], 2), torch.cat([each for _, each in self.parts], 2)


class WithAShelf(nn.Module):
    """Causal attention with learned positions, which go on where those of the tokens before ended."""

    counted = 2

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Shelf | None = None) -> Tensor:
        first = past.count if past is not None else 0
        x = x + self.places(torch.arange(first, first + x.shape[1]))
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if past is not None:
            k, v = past.append(k, v, q.shape[self.counted])
        hidden = torch.ones(q.shape[2], k.shape[2]).triu(1 + k.shape[2] - q.shape[2]) > 0
        scores = (q @ k.mT * (WIDTH // HEADS) ** -0.5).masked_fill(hidden, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WithBuffers(nn.Module):
    """Attention that writes the new keys and values into copies of two buffers."""

    is_mixed_up = False

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.n_head = HEADS

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        input_pos: Tensor | None = None,
        kv_cache: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if kv_cache is not None:
            old_k, old_v = kv_cache
            k = old_k.index_copy(2, input_pos, k)
            v = (old_k if self.is_mixed_up else old_v).index_copy(2, input_pos, v)
            kv_cache = k, v
        read = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(read.transpose(1, 2).flatten(2)), kv_cache


class OfPairs(nn.Module):
    """Causal attention whose cache is a pair that grows."""

    is_mixed_up = False

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, past_kv: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if past_kv is not None:
            k, v = torch.cat([past_kv[0], k], 1), torch.cat([past_kv[0 if self.is_mixed_up else 1], v], 1)
        hidden = torch.ones(q.shape[1], k.shape[1]).triu(1 + k.shape[1] - q.shape[1]) > 0
        weights = (q @ k.mT * WIDTH**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return weights @ v, (k, v)


@pytest.mark.parametrize(
    ("kind", "name", "value", "violated"),
    [
        (WithAShelf, "counted", 1, "cache-positions"),
        (WithBuffers, "is_mixed_up", True, "cache-values"),
        (OfPairs, "is_mixed_up", True, "cache-values"),
    ],
)
def test_a_cache_is_found_by_what_the_code_does_with_it(
    kind: type[nn.Module], name: str, value: int, violated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = analyze(next(invocations(kind, args={})))
    assert not right.violations
    if kind is not WithBuffers:  # it has no mask of its own
        assert any((each.kind, each.property) == ("holds", "cache-equals-whole") for each in right.findings)
    monkeypatch.setattr(kind, name, value)
    assert [each.property for each in analyze(next(invocations(kind, args={}))).violations] == [violated]
