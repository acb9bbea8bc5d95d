"""Attention over the nearest neighbours of points: a perceptron of a query less a key gives every channel a weight.

As in Point Transformer (Zhao et al. 2021).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

POINTS, NEIGHBOURS = 6, 3


class VectorAttention(nn.Module):
    axis = -2

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.places = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, WIDTH))
        self.scores = nn.Sequential(nn.Linear(WIDTH, 7), nn.ReLU(), nn.Linear(7, WIDTH))

    def forward(self, x: Tensor, pos: Tensor, mask: Tensor | None = None) -> Tensor:
        apart = pos[:, :, None] - pos[:, None]
        lengths = apart.norm(dim=-1)
        if mask is not None:
            lengths = lengths.masked_fill(~mask[:, None], torch.inf)
        nearest = lengths.topk(NEIGHBOURS, largest=False).indices
        offsets = self.places(apart.gather(2, nearest[..., None].expand(-1, -1, -1, 3)))
        scores = self.scores(self.pairs(self.q(x), self.k(x), nearest) + offsets)
        if mask is not None:
            scores = scores.masked_fill(~gathered(mask, nearest)[..., None], -torch.inf)
        values = gathered(self.v(x), self.of_values(nearest)) + offsets
        return (scores.softmax(self.axis) * values).sum(-2)

    def pairs(self, q: Tensor, k: Tensor, nearest: Tensor) -> Tensor:
        return q[:, :, None] - gathered(k, nearest)

    def of_values(self, nearest: Tensor) -> Tensor:
        return nearest


def gathered(x: Tensor, nearest: Tensor) -> Tensor:
    return x[torch.arange(len(x))[:, None, None], nearest]


class AllPairs(VectorAttention):
    """The neighbours are chosen of all pairs."""

    def pairs(self, q: Tensor, k: Tensor, nearest: Tensor) -> Tensor:
        return (q[:, :, None] - k[:, None]).gather(2, nearest[..., None].expand(-1, -1, -1, WIDTH))


class OtherValues(VectorAttention):
    def of_values(self, nearest: Tensor) -> Tensor:
        return nearest.sort(-1).values


class OverQueries(VectorAttention):
    axis = 1


class OverChannels(AllPairs):
    axis = -1


def found(kind: type[nn.Module]) -> set[tuple[str, str]]:
    module = kind()
    prepare(module, 1)
    given = {"x": drawn(2, POINTS, WIDTH, seed=0), "pos": drawn(2, POINTS, 3, seed=1)}
    call = Invocation(module, {**given, "mask": None}, ["x", "pos"], [Stream("x", "x", 0, (1,))], masks=["mask"])
    analysis = analyze(call, masks=True)
    assert not analysis.missing
    return {(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")}


@pytest.mark.parametrize("kind", [VectorAttention, AllPairs])
def test_a_perceptron_may_make_a_weight_of_each_channel(kind: type[nn.Module]) -> None:
    assert found(kind) == {("design", "additive-scores"), ("design", "sparse-by-content")}


@pytest.mark.parametrize(
    ("kind", "violated"),
    [
        (OtherValues, "value-of-the-key"),
        (OverQueries, "softmax-over-keys"),
        (OverChannels, "softmax-over-keys"),
    ],
)
def test_its_mistakes_are_found(kind: type[nn.Module], violated: str) -> None:
    assert ("violation", violated) in found(kind)
