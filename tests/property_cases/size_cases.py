"""Sizes of one argument, or of one layer, where those of another were meant."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x_and_context
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


class ViewedByTheOtherLength(nn.Module):
    """Attention of x to a context."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x_len = x.size(1)
        context_len = context.size(1)
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, -1)
        half = q.view(len(x), x_len, 1, WIDTH) / 2
        asked = half + q.view(len(x), context_len, 1, WIDTH) / 2  # here
        return self.out((asked.flatten(2) @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class ViewedByItsLength(ViewedByTheOtherLength):
    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch = x.size(0)
        x_len = x.size(1)
        context_len = context.size(1)
        q = self.to_q(x).view(batch, x_len, 2, WIDTH // 2).transpose(1, 2)
        both = self.to_kv(context)
        k = both.view(batch, context_len, 2, 2, WIDTH // 2)[:, :, 0].transpose(1, 2)
        v = both.view(batch, context_len, 2, 2, WIDTH // 2)[:, :, 1].transpose(1, 2)
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


class OneLengthForBoth(ViewedByTheOtherLength):
    """The code says itself that both are as long."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x_len = x.size(1)
        context_len = context.size(1)
        assert x_len == context_len
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, -1)
        asked = q.view(len(x), x_len, 1, WIDTH) + 0 * q.view(len(x), context_len, 1, WIDTH)
        return self.out((asked.flatten(2) @ k.mT / WIDTH**0.5).softmax(-1) @ v)


class KeysAsWideAsValues(nn.Module):
    """Attention of x to a context."""

    def __init__(self, width: int, query_dim: int, key_dim: int, value_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, query_dim)
        self.key = nn.Linear(value_dim, key_dim)  # here
        self.value = nn.Linear(width, value_dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(context).mT / self.query.out_features**0.5
        return scores.softmax(-1) @ self.value(context)


class KeysAsWideAsTheRest(KeysAsWideAsValues):
    def __init__(self, width: int, query_dim: int, key_dim: int, value_dim: int) -> None:
        super().__init__(width, query_dim, key_dim, value_dim)
        self.key = nn.Linear(width, key_dim)


class KeysOfAnotherWidth(KeysAsWideAsValues):
    """The keys may be of vectors of their own width."""

    def __init__(self, width: int, query_dim: int, key_dim: int, value_dim: int) -> None:
        nn.Module.__init__(self)
        other = width
        self.query = nn.Linear(width, query_dim)
        self.key = nn.Linear(other, key_dim)
        self.value = nn.Linear(width, value_dim)


def called(kind: Any) -> Invocation:
    module = kind()
    prepare(module, 1)
    return of_x_and_context(module)


def of_widths(kind: Any) -> Invocation:
    return called(lambda: kind(*[WIDTH] * 4))


CASES = [
    Case("sizes-of-its-own", ViewedByTheOtherLength, ViewedByItsLength, called),
    Case("sizes-of-its-own", ViewedByTheOtherLength, OneLengthForBoth, called),
    Case("sizes-of-its-own", KeysAsWideAsValues, KeysAsWideAsTheRest, of_widths),
    Case("sizes-of-its-own", KeysAsWideAsValues, KeysOfAnotherWidth, of_widths),
]
