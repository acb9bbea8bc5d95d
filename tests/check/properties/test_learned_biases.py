"""A bias that is scaled with the scores: one that is learned may be, one of chosen numbers is another one then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, joined, of_module, split
from regard.check.properties.analyze import analyze

NUMBERS = drawn(7, 2, seed=2)


class Biased(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q = k = v = split(x)
        places = torch.arange(x.shape[1])
        bias = self.bias(places[None] - places[:, None])
        return joined(((q @ k.mT + bias) * q.shape[-1] ** -0.5).softmax(-1) @ v)

    def bias(self, distance: Tensor) -> Tensor:
        return NUMBERS[distance + 3].permute(2, 0, 1)


class OfATable(Biased):
    """Of each distance and head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(NUMBERS.clone())

    def bias(self, distance: Tensor) -> Tensor:
        return self.table[distance + 3].permute(2, 0, 1)


class OfAnEmbedding(Biased):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 2)

    def bias(self, distance: Tensor) -> Tensor:
        return self.embedding(distance + 3).movedim(-1, 0)[None]


class OfANetwork(Biased):
    """As of the logarithms of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2))

    def bias(self, distance: Tensor) -> Tensor:
        return self.network(distance[..., None].double()).permute(2, 0, 1)


class OfSlopes(Biased):
    def bias(self, distance: Tensor) -> Tensor:
        return -(distance**2) * torch.tensor([0.5, 0.25])[:, None, None]


class OfABuffer(Biased):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", NUMBERS.clone())

    def bias(self, distance: Tensor) -> Tensor:
        return self.table[distance + 3].permute(2, 0, 1)


@pytest.mark.parametrize("kind", [OfATable, OfAnEmbedding, OfANetwork])
def test_a_learned_bias_may_be_scaled_with_the_scores(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    analysis = analyze(of_module(kind))
    assert analysis.violations == []
    assert "bias-after-scale" in [each.property for each in analysis.findings if each.kind == "design"]


@pytest.mark.parametrize("kind", [Biased, OfSlopes, OfABuffer])
def test_a_bias_of_chosen_numbers_may_not(kind: type[nn.Module]) -> None:
    assert "bias-after-scale" in [each.property for each in analyze(of_module(kind)).violations]


class OfTwoNumbers(nn.Module):
    """A network of distances, with a norm over so few numbers that it returns the same for all."""

    def __init__(self, *, width: int = 2) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, width), nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)
        bias = self.network((places - places[:, None])[..., None]).movedim(-1, 0)
        return joined((split(x) @ split(x).mT / 2 + self.of(bias)).softmax(-1) @ split(x))

    def of(self, bias: Tensor) -> Tensor:
        return bias


class OfNoKey(OfTwoNumbers):
    def of(self, bias: Tensor) -> Tensor:
        return bias[..., :1].expand_as(bias)


@pytest.mark.parametrize(("network", "is_wrong"), [(OfTwoNumbers(), False), (OfNoKey(width=4), True)])
def test_a_norm_over_two_numbers_makes_no_bias_a_constant(network: nn.Module, is_wrong: bool) -> None:
    found = {each.property for each in analyze(of_module(lambda: network)).violations}
    assert ("bias-by-key" in found) == is_wrong
