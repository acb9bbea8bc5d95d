"""Edges of a graph that are added to the scores times a learned number: a bias, no mask that does not hide."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Hidden(nn.Module):
    """Attention of nodes to their neighbours."""

    def __init__(self, d_model: int = 32, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def linked(self, scores: Tensor, adj: Tensor) -> Tensor:
        """The scores with what the edges do to them."""
        return scores.masked_fill((adj == 0)[:, None], float("-inf"))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        """Nodes (batch, nodes, width), and adj (batch, nodes, nodes)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.linked(q @ k.mT / q.shape[-1] ** 0.5, adj)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Weighed(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, self.n_heads, 1, 1))

    def linked(self, scores: Tensor, adj: Tensor) -> Tensor:
        return scores + self.gamma * adj[:, None]


class WeighedByOneNumber(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.tensor(0.5))

    def linked(self, scores: Tensor, adj: Tensor) -> Tensor:
        return scores + adj.unsqueeze(1) * self.gamma


class WeighedOnDemand(Weighed):
    """Without edges it is plain attention."""

    def forward(self, x: Tensor, adj: Tensor | None = None) -> Tensor:
        """Nodes (batch, nodes, width), and adj (batch, nodes, nodes)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if adj is None else self.linked(scores, adj)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class AddedOnDemand(WeighedOnDemand):
    """Ones are added where there is an edge, beside numbers that are learned of each head."""

    def linked(self, scores: Tensor, adj: Tensor) -> Tensor:
        return (scores + adj[:, None].to(scores.dtype)) * self.gamma


class Added(Hidden):
    """Ones are added where there is an edge: what has none is seen as well."""

    def linked(self, scores: Tensor, adj: Tensor) -> Tensor:
        return scores + adj[:, None].to(scores.dtype)


@pytest.mark.parametrize("right", [Hidden, Weighed, WeighedByOneNumber, WeighedOnDemand])
def test_edges_that_hide_or_are_weighed_are_right(right: type[nn.Module]) -> None:
    assert check(right).verdict in ("right", "right in another layout or convention", "different by design")


@pytest.mark.parametrize("wrong", [Added, AddedOnDemand])
def test_edges_that_are_added_as_they_are_hide_nothing(wrong: type[nn.Module]) -> None:
    assert "mask-argument" in [each.id for each in check(wrong).causes]
