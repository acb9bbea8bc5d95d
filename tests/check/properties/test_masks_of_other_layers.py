"""A mask of the keys that a layer hides, where another layer of the same list attends to them with other queries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, source: Tensor, padding: Tensor | None) -> Tensor:
        return x + self.attention(x, source, source, key_padding_mask=padding)[0]


class Pooling(nn.Module):
    """All nodes attend to each other; then one learned query reads them (Baek et al. 2021)."""

    is_masked_inside = True

    def __init__(self) -> None:
        super().__init__()
        self.asks = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pools = nn.ModuleList(Attending() for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        padding = ~mask
        x = self.pools[0](x, x, padding if self.is_masked_inside else None)
        return self.pools[1](self.asks.expand(len(x), -1, -1), x, padding)


class PoolingAlone(Pooling):
    is_masked_inside = False


class AsTokens(Pooling):
    """The nodes ask what is left of them: both layers have the same queries."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        padding = ~mask
        return self.pools[1](self.pools[0](x, x, padding), x, padding)


def violations(kind: type[nn.Module]) -> list[Finding]:
    module = kind()
    prepare(module, 1)
    streams = [Stream("x", "x", 0, (1,))]
    given = {"x": drawn(2, 5, WIDTH, seed=0), "mask": torch.ones(2, 5, dtype=torch.bool)}
    call = Invocation(module, given, ["x", "mask"], streams, masks=["mask"])
    return analyze(call, masks=True).violations


def test_padding_that_a_layer_before_the_pooling_attends_to_is_not_hidden() -> None:
    (found,) = violations(PoolingAlone)
    assert found.property == "mask-argument"
    assert found.message == "mask hides keys in pools.1.attention, and pools.0.attention attends to them"


@pytest.mark.parametrize("kind", [Pooling, AsTokens])
def test_layers_with_other_queries_that_all_hide_it_are_right(kind: type[nn.Module]) -> None:
    assert not violations(kind)
