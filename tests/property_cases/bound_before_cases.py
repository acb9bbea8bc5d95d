"""Layers that run a method which was bound before they were copied: that of another object."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def attended(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attended(x)


class Wrapped(Attends):
    """What a function made of a method is the first object's, and is copied as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.run = _wrapped(self.attended)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.run(x)


def _wrapped(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        return function(x)

    return call


class Copies(nn.Module):
    kind: type[nn.Module] = Attends

    def __init__(self) -> None:
        super().__init__()
        base = self.kind()
        self.layers = nn.ModuleList(copy.deepcopy(base) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class CopiesOfWrapped(Copies):
    kind = Wrapped


class MadeOneByOne(Copies):
    """Each layer wraps its own method."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layers = nn.ModuleList(Wrapped() for _ in range(2))


CASES = [
    Case("parameters-used", CopiesOfWrapped, Copies, of_module, has_line=False, attentions=2),
    Case("parameters-used", CopiesOfWrapped, MadeOneByOne, of_module, has_line=False, attentions=2),
]
