"""One matrix for queries, keys and values, a third of which nothing uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, of_x, split
from regard.check.target import Invocation


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


class HandingOut(OfThirds):
    """Its keys and values are returned beside the output, for the next call."""

    def forward(self, x: Tensor) -> Any:
        q, k, v = (split(each) for each in self.thirds(x))
        return self.out(joined(self.read(q, k, v))), (k, v)

    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.scores(q, k) / 2).softmax(-1) @ v


class HandingOutUnreadValues(HandingOut):
    def read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.scores(q, k) / 2).softmax(-1) @ k


class HandingOutUnaskedKeys(HandingOut):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ q.mT


def of_thirds(x: Tensor, w_qkv: Tensor, w_o: Tensor) -> Tensor:
    q, k, v = (split(each) for each in (x @ w_qkv).chunk(3, -1))
    return joined((q @ k.mT / 2).softmax(-1) @ v) @ w_o


def keys_read_of_thirds(x: Tensor, w_qkv: Tensor, w_o: Tensor) -> Tensor:
    q, k, _ = (split(each) for each in (x @ w_qkv).chunk(3, -1))
    return joined((q @ k.mT / 2).softmax(-1) @ k) @ w_o


def with_matrices(function: Any) -> Invocation:
    call = of_x(function)
    call.arguments |= {"w_qkv": drawn(WIDTH, 3 * WIDTH, seed=1), "w_o": drawn(WIDTH, WIDTH, seed=2)}
    return call


class Whole(nn.Module):
    def __init__(self, residual: bool = False) -> None:
        super().__init__()
        self.residual = residual
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.beside = nn.Linear(WIDTH, WIDTH)

    def around(self, x: Tensor, y: Tensor) -> Tensor:
        if self.residual:
            y = y + self.beside(x)
        return y

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        return self.around(x, self.o(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)))


class WithoutWhatStandsBeside(Whole):
    def around(self, x: Tensor, y: Tensor) -> Tensor:
        if self.residual:
            y = y + self.beside(x)
        self.beside(x)
        return y


CASES = [
    Case("projection-used", WithoutWhatStandsBeside, Whole, of_module, has_line=False),
    Case("projection-used", HandingOutUnreadValues, HandingOut, of_module, has_line=False),
    Case("projection-used", HandingOutUnaskedKeys, HandingOut, of_module, has_line=False),
    Case("projection-used", keys_read_of_thirds, of_thirds, with_matrices, has_line=False),
    Case("projection-used", QueriesByQueries, OfThirds, of_module, has_line=False),
    Case("projection-used", ConvolvedQueriesByQueries, OfConvolvedThirds, of_module, has_line=False),
    Case("projection-used", KeysByKeysOfEachHead, OfThirdsOfEachHead, of_module, has_line=False),
    Case("projection-used", QueriesByQueries, WithAHiddenLayer, of_module, has_line=False),
]
