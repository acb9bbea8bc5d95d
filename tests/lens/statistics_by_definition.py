"""Every statistic of an attention map by its definition, on dense weights in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard
from regard.lens import AttentionMap, TopWeights

LIMIT = 1e-4


@dataclass
class Dense:
    """Weights (batch, heads, queries, keys) in float64, and their statistics."""

    w: Tensor

    @classmethod
    def of(cls, q: Tensor, k: Tensor, mask: regard.mask.Mask | None = None, **options: Any) -> Dense:
        """The weights of an attention call."""
        options = {name: t.double() if isinstance(t, Tensor) else t for name, t in options.items()}
        return cls(regard.steps(q.double(), k.double(), k.double(), mask, **options).weights)

    def entropy(self) -> Tensor:
        return -torch.xlogy(self.w, self.w).sum(-1)

    def received(self, rows: Tensor | None = None) -> Tensor:
        return (self.w if rows is None else self.w * rows[:, None, :, None]).sum(-2)

    def mass(self, inside: Tensor) -> Tensor:
        return self.w @ inside.double().mT[..., None, :, :]

    def distance(self) -> tuple[Tensor, Tensor]:
        queries, keys = self.w.shape[-2:]
        shares = self.w / self.w.sum(-1, keepdim=True).clamp(min=1e-300)
        position = torch.arange(keys).double()
        mean = (shares * position).sum(-1)
        spread = (shares * (position - mean[..., None]) ** 2).sum(-1).sqrt()
        query = torch.arange(queries) + keys - queries
        return (query - mean).masked_fill(self.w.sum(-1) == 0, 0.0), spread

    def pooled(self, rows: int, columns: int) -> Tensor:
        queries, keys = self.w.shape[-2:]
        picture = torch.zeros(*self.w.shape[:2], rows, columns, dtype=torch.float64)
        for r in range(rows):
            for c in range(columns):
                top, bottom = r * queries // rows, (r + 1) * queries // rows
                left, right = c * keys // columns, (c + 1) * keys // columns
                picture[..., r, c] = self.w[..., top:bottom, left:right].sum((-1, -2)) / (bottom - top)
        return picture


def assert_near(ours: Tensor, expected: Tensor, limit: float = LIMIT) -> None:
    assert ours.shape == expected.shape
    assert not ours.numel() or (ours.double() - expected).abs().max() <= limit


def assert_every_statistic(m: AttentionMap, dense: Dense) -> None:
    """All of them; groups, rows and cells that fit any size."""
    batch, _, queries, keys = m.shape
    assert_near(m.dense(), dense.w, 1e-5)
    assert_near(m.entropy(), dense.entropy())
    assert_near(m.received(), dense.received())
    counts = torch.linspace(0, 2, batch * queries).view(batch, queries)
    assert_near(m.received(rows=counts), dense.received(counts.double()))

    ids = (torch.arange(batch)[:, None] + torch.arange(keys)) % 7
    assert_near(m.mass(ids), dense.mass(ids[:, None] == torch.arange(int(ids.max()) + 1)[:, None]))
    inside = torch.stack([torch.arange(keys) % 3 == 1, torch.arange(keys) % 2 == 0])
    assert_near(m.mass(inside), dense.mass(inside[None]))

    for ours, expected in zip(m.distance(), dense.distance(), strict=True):
        assert_near(ours, expected, LIMIT * keys)
    for k in {min(5, keys), keys}:
        assert_top(m.top(k), dense, k)
    pictures = {(min(3, queries), min(4, keys)), (1, 1), (queries, keys if keys < 20 else 1)}
    for rows, columns in pictures:
        assert_near(m.pooled(rows, columns), dense.pooled(rows, columns))
    assert_together(m, dense, inside)


def assert_together(m: AttentionMap, dense: Dense, inside: Tensor) -> None:
    """The answers to all questions at once, and to those that need no other sums."""
    queries, keys = m.shape[2:]
    k, cells = min(3, keys), (min(3, queries), min(4, keys))
    asked = m.ask("entropy", "received", "distance", mass=inside, top=k, pooled=cells)
    assert list(asked) == ["entropy", "received", "distance", "mass", "top", "pooled"]
    assert_near(asked["entropy"], dense.entropy())
    assert_near(asked["received"], dense.received())
    assert_near(asked["mass"], dense.mass(inside[None]))
    assert_near(asked["pooled"], dense.pooled(*cells))
    assert_top(asked["top"], dense, k)
    for ours, expected in zip(asked["distance"], dense.distance(), strict=True):
        assert_near(ours, expected, LIMIT * keys)
    assert_near(m.ask("received")["received"], dense.received())


def assert_top(found: TopWeights, dense: Dense, k: int) -> None:
    """The k largest weights of each row, in order, each with another key that has it, or with key -1 and weight 0."""
    expected = dense.w.topk(k).values
    assert_near(found.weights, expected)
    nothing = found.keys == -1
    assert not found.weights[nothing].any()
    assert_near(dense.w.gather(-1, found.keys.clamp(min=0)).masked_fill(nothing, 0.0), expected)
    in_order = found.keys.sort(-1).values
    assert not ((in_order.diff(dim=-1) == 0) & (in_order[..., 1:] >= 0)).any()
