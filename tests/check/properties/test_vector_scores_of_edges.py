"""Scores of single channels, beside as many channels of the edge between two nodes; edges are returned as well."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

RIGHT = ("right", "different by design")


class OfEdges(nn.Module):
    """Nodes attend to nodes; what becomes of the products of queries and keys is the new edge between the two."""

    def __init__(self, dx: int = 16, de: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(dx, dx) for _ in range(4))
        self.times, self.plus, self.edge = nn.Linear(de, dx), nn.Linear(de, dx), nn.Linear(dx, de)
        self.gate = nn.Linear(dx, dx)

    def scores(self, products: Tensor, edges: Tensor) -> Tensor:
        return products * (self.times(edges) + 1) + self.plus(edges)

    def forward(self, X: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes X: (bs, n, d) and edges E: (bs, n, n, d)."""
        products = self.q(X).unsqueeze(2) * self.k(X).unsqueeze(1) / 4
        scores = self.scores(products, E)
        read = (scores.softmax(2) * self.v(X).unsqueeze(1)).sum(2)
        return self.out(read), self.edge(self.gate(scores))


class OfEdgesAlike(OfEdges):
    """The edge adds the same number to all channels."""

    def scores(self, products: Tensor, edges: Tensor) -> Tensor:
        return products + self.plus(edges).mean(-1, keepdim=True)


class GateUnread(OfEdges):
    def forward(self, X: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes X: (bs, n, d) and edges E: (bs, n, n, d)."""
        products = self.q(X).unsqueeze(2) * self.k(X).unsqueeze(1) / 4
        scores = self.scores(products, E)
        read = (scores.softmax(2) * self.v(X).unsqueeze(1)).sum(2)
        return self.out(read), self.edge(scores)


def test_channels_of_edges_beside_channels_of_products_say_that_these_are_scores() -> None:
    assert check(OfEdges).verdict in RIGHT


@pytest.mark.parametrize("kind", [OfEdgesAlike, GateUnread])
def test_what_all_channels_share_says_nothing_of_them_and_what_no_edge_is_made_of_is_unused(
    kind: type[nn.Module],
) -> None:
    assert check(kind).verdict not in RIGHT
