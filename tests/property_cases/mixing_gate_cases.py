"""Gates that mix the input of a block and what is made of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class MixesItself(nn.Module):
    """Attention whose output is mixed with its input by a gate, as in a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        read = joined((q @ k.mT / 2).softmax(-1) @ v)
        z = self.gate(read + x).sigmoid()
        return self.mixed(x, z, read)

    def mixed(self, x: Tensor, z: Tensor, new: Tensor) -> Tensor:
        return (1 - z) * z + z * new  # here


class MixesItsInput(MixesItself):
    def mixed(self, x: Tensor, z: Tensor, new: Tensor) -> Tensor:
        return (1 - z) * x + z * new


class AddsAVariance(MixesItself):
    """What is added is not mixed by the gate."""

    def mixed(self, x: Tensor, z: Tensor, new: Tensor) -> Tensor:
        return x + z * (1 - z) + new


class MixesByItsInput(MixesItself):
    """A share that is handed over, which nothing in the run makes, of itself and of what was read."""

    def mixed(self, x: Tensor, z: Tensor, new: Tensor) -> Tensor:
        return (1 - x) * new + x * z


class MixesOneWithItself(MixesItself):
    def mixed(self, x: Tensor, z: Tensor, new: Tensor) -> Tensor:
        return (1 - z) * new + z * new  # here


class MixesTwoHalves(MixesItself):
    """Both lie in one memory."""

    def mixed(self, x: Tensor, z: Tensor, new: Tensor) -> Tensor:
        one, other = torch.cat([x, new], -1).chunk(2, -1)
        return (1 - z) * one + z * other


CASES = [
    Case("gate-mixes-others", MixesOneWithItself, MixesItsInput, of_module),
    Case("gate-mixes-others", MixesOneWithItself, MixesTwoHalves, of_module),
    Case("gate-mixes-others", MixesItself, MixesItsInput, of_module),
    Case("gate-mixes-others", MixesItself, AddsAVariance, of_module),
    Case("gate-mixes-others", MixesItself, MixesByItsInput, of_module),
]
