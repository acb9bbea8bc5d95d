"""What is kept from call to call: caches of keys, and tables of positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import joined, of_module, split
from property_cases.call_cases import KeepsItsAngles, KeepsThemByTheLength, KeepsThoseOfTheFirstCall
from regard.check.properties.analyze import analyze


class KeepsItsKeys(KeepsItsAngles):
    """Keys of the tokens before the offset are those of earlier calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 2, 16, 4))
        self.register_buffer("values", torch.zeros(2, 2, 16, 4))

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        end = offset + x.shape[1]
        self.keys[:, :, offset:end], self.values[:, :, offset:end] = self.rotated(k, offset).detach(), v.detach()
        scores = self.rotated(q, offset) @ self.keys[:, :, :end].mT / q.shape[-1] ** 0.5
        return joined(scores.softmax(-1) @ self.values[:, :, :end])


class GoesOn(KeepsItsAngles):
    """Tokens of each call stand after those of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def forward(self, x: Tensor) -> Tensor:
        self.length += x.shape[1]
        return super().forward(x, self.length - x.shape[1])


def violated(kind: type[nn.Module]) -> list[str]:
    return [each.message for each in analyze(of_module(kind)).violations]


def test_caches_of_keys_and_positions_that_go_on_are_right() -> None:
    assert violated(KeepsItsKeys) == []
    assert violated(GoesOn) == []


class TwoLayers(nn.Module):
    """What the second layer is given was made of the cache of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = KeepsItsKeys(), KeepsItsKeys()

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.second(x + self.first(x, offset), offset)


def test_caches_of_earlier_layers_change_the_queries_of_later_ones() -> None:
    assert [each.property for each in analyze(of_module(TwoLayers), masks=True).violations] == []


def test_it_is_said_after_which_call_positions_are_others() -> None:
    (found,) = violated(KeepsThemByTheLength)
    assert found == (
        "a call with offset=3 has other queries and keys after one without it than alone: what is kept is that one's"
    )
    (found,) = violated(KeepsThoseOfTheFirstCall)
    assert found.startswith("a call of 4 tokens raises after one of 3, and not alone: RuntimeError")
