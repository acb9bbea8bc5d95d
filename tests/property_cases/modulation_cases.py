"""Blocks whose norms are shifted and scaled by a vector of each sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, split
from property_cases.output_cases import attention
from regard.check.target import Invocation, Stream


class Steered(nn.Module):
    """Shift, scale and gate of the attention, then those of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.steer, self.norm = nn.Linear(WIDTH, 6 * WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.w_1, self.w_2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        parts = self.steer(c.sigmoid()).unsqueeze(1).chunk(6, -1)  # here
        shift, scale, gate = parts[:3]
        x = x + gate * attention(self.norm(x) * (1 + scale) + shift)
        shift, scale, gate = self.of_network(parts)
        hidden = torch.relu(self.w_1(self.norm(x) * (1 + scale) + shift))
        return x + gate * self.w_2(hidden)

    def of_network(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return parts[3:]


class GatedAlike(Steered):
    def of_network(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (*parts[3:5], parts[2])


class ShiftedByItsScale(Steered):
    def of_network(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return parts[4], *parts[4:]


class NeverGated(Steered):
    """The last part is there for what is loaded from elsewhere."""

    def of_network(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (*parts[3:5], torch.ones(()))


class ScaledAlike(Steered):
    """Four parts, of which one is for both sublayers: nothing is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.steer = nn.Linear(WIDTH, 6 * WIDTH)
        self.shared = nn.Linear(WIDTH, 5 * WIDTH)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        first, scale, gate, second, other = self.shared(c).unsqueeze(1).chunk(5, -1)
        x = x + gate * attention(self.norm(x) * (1 + scale) + first)
        x = x + other * self.w_2(torch.relu(self.w_1(self.norm(x) * (1 + scale) + second)))
        return x + self.steer(c)[:, None, :WIDTH]


class BegunAsZeros(nn.Module):
    """All that a condition says begins as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.steer, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.begin()

    def begin(self) -> None:
        for each in self.steer.parameters():
            nn.init.zeros_(each)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate = self.steer(c.sigmoid()).unsqueeze(1).chunk(3, -1)
        q, k, v = (split(each) for each in self.qkv(self.scaled(x, scale) + shift).chunk(3, -1))
        return x + gate * joined((q @ k.mT / 2).softmax(-1) @ v)

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        result: Tensor = self.norm(x) * (1 + scale)
        return result


class ScaledFromZero(BegunAsZeros):
    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        result: Tensor = self.norm(x) * scale  # here
        return result


class ScaledAsDrawn(ScaledFromZero):
    """What a condition says begins as other parameters do."""

    def begin(self) -> None:
        pass


class GatedBehindANorm(BegunAsZeros):
    """What was read is normed once more, and is added to the tokens as it is scaled and shifted."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate = self.steer(c.sigmoid()).unsqueeze(1).chunk(3, -1)
        q, k, v = (split(each) for each in self.qkv(self.norm(x)).chunk(3, -1))
        read = self.norm(joined((q @ k.mT / 2).softmax(-1) @ v))
        return x + (read * scale + shift) + gate


def of_x_and_condition(kind: Any) -> Invocation:
    module = of_module(kind).target
    arguments = {"x": drawn(2, 4, WIDTH, seed=0), "c": drawn(2, WIDTH, seed=1)}
    return Invocation(module, arguments, ["x", "c"], [Stream("x", "x", 0, (1,))])


CASES = [
    *(
        Case("scale-counted-from-one", ScaledFromZero, right, of_x_and_condition)
        for right in (BegunAsZeros, ScaledAsDrawn, GatedBehindANorm)
    ),
    Case("modulations-used", GatedAlike, Steered, of_x_and_condition),
    Case("modulations-used", ShiftedByItsScale, NeverGated, of_x_and_condition),
    Case("modulations-used", ShiftedByItsScale, ScaledAlike, of_x_and_condition),
]
