"""Blocks whose norms are shifted and scaled by a vector of each sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, of_module
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


def of_x_and_condition(kind: Any) -> Invocation:
    module = of_module(kind).target
    arguments = {"x": drawn(2, 4, WIDTH, seed=0), "c": drawn(2, WIDTH, seed=1)}
    return Invocation(module, arguments, ["x", "c"], [Stream("x", "x", 0, (1,))])


CASES = [
    Case("modulations-used", GatedAlike, Steered, of_x_and_condition),
    Case("modulations-used", ShiftedByItsScale, NeverGated, of_x_and_condition),
    Case("modulations-used", ShiftedByItsScale, ScaledAlike, of_x_and_condition),
]
