"""Several sequences that are alike, each of which attends to itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class OfItself(nn.Module):
    """Self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in "qkv")

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / WIDTH**0.5  # here
        read: Tensor = scores.softmax(-1) @ self.v(x)
        return read


class ThreeHypotheses(nn.Module):
    """Each hypothesis attends to itself; what all three say is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(OfItself() for _ in range(3))
        self.join = nn.Linear(3 * WIDTH, 3 * WIDTH)

    def forward(self, x_1: Tensor, x_2: Tensor, x_3: Tensor) -> Tensor:
        first, second, third = self.attentions
        x_1 = x_1 + first(x_1)
        x_2 = x_2 + second(self.second(x_1, x_2))
        x_3 = x_3 + third(x_3)
        return torch.relu(self.join(torch.cat([x_1, x_2, x_3], -1)))

    def second(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        """What the second attention reads."""
        return x_2


class TheFirstTwice(ThreeHypotheses):
    def second(self, x_1: Tensor, x_2: Tensor) -> Tensor:
        return x_1


class OneAfterTheOther(ThreeHypotheses):
    """Layers of the first sequence, to whose output the others are added."""

    def forward(self, x_1: Tensor, x_2: Tensor, x_3: Tensor) -> Tensor:
        for layer in self.attentions:
            x_1 = x_1 + layer(x_1)
        return torch.relu(self.join(torch.cat([x_1, x_1 + x_2, x_1 + x_3], -1)))


def of_three(kind: type[nn.Module]) -> Invocation:
    """A call of three sequences."""
    module = kind()
    prepare(module, 1)
    given = {name: drawn(2, 4, WIDTH, seed=seed) for seed, name in enumerate(("x_1", "x_2", "x_3"))}
    return Invocation(module, given, [*given], [Stream(name, "x", 0, (1,)) for name in given])


CASES = [
    Case("added-to-itself", TheFirstTwice, right, of_three, attentions=3)
    for right in (ThreeHypotheses, OneAfterTheOther)
]
