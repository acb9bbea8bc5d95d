"""One matrix for queries, keys and values, a third of which nothing uses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class OfThirds(nn.Module):
    """Its name says nothing of queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in self.thirds(x))
        return self.out(joined((self.scores(q, k) / 2).softmax(-1) @ v))

    def thirds(self, x: Tensor) -> list[Tensor]:
        return [*self.mixed(x).chunk(3, -1)]

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT


class QueriesByQueries(OfThirds):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ q.mT


class OfConvolvedThirds(OfThirds):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Conv1d(WIDTH, 3 * WIDTH, 1)

    def thirds(self, x: Tensor) -> list[Tensor]:
        return [*self.mixed(x.mT).mT.chunk(3, -1)]


class ConvolvedQueriesByQueries(OfConvolvedThirds):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ q.mT


class OfThirdsOfEachHead(OfThirds):
    """Each head's queries, keys and values stand together."""

    def thirds(self, x: Tensor) -> list[Tensor]:
        return [each.flatten(2) for each in self.mixed(x).unflatten(-1, (2, 3, -1)).unbind(-2)]


class KeysByKeysOfEachHead(OfThirdsOfEachHead):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return k @ k.mT


class WithAHiddenLayer(OfThirds):
    """A part of the matrix is the first of a feed-forward network, some of whose numbers are cut off for all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.down = nn.Linear(WIDTH, 5 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made = self.mixed(x)
        q, k, v = (split(each) for each in made[..., : 3 * WIDTH].chunk(3, -1))
        hidden = made[..., 3 * WIDTH :]
        live = torch.arange(hidden.shape[-1]) % 4 > 0
        bent = (hidden + torch.where(live, 0.0, -100.0)).relu()
        return self.out(joined((q @ k.mT / 2).softmax(-1) @ v)) + self.down(bent)


CASES = [
    Case("projection-used", QueriesByQueries, OfThirds, of_module, has_line=False),
    Case("projection-used", ConvolvedQueriesByQueries, OfConvolvedThirds, of_module, has_line=False),
    Case("projection-used", KeysByKeysOfEachHead, OfThirdsOfEachHead, of_module, has_line=False),
    Case("projection-used", QueriesByQueries, WithAHiddenLayer, of_module, has_line=False),
]
