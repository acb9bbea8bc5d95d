"""Attention that projects keys and values by one product where both are the same tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Packed(nn.Module):
    """Multi-head attention whose matrices are one: of queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(3 * WIDTH, WIDTH)), nn.Parameter(torch.zeros(3 * WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)

    def rows(self, x: Tensor, begin: int, end: int) -> Tensor:
        return F.linear(x, self.weight[begin * WIDTH : end * WIDTH], self.bias[begin * WIDTH : end * WIDTH])

    def both(self, key: Tensor) -> tuple[Tensor, ...]:
        return self.rows(key, 1, 3).chunk(2, -1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q = self.rows(query, 0, 1)
        if key.data_ptr() == value.data_ptr():
            k, v = self.both(key)
        else:
            k, v = self.rows(key, 1, 2), self.rows(value, 2, 3)
        q, k, v = map(split, (q, k, v))
        return self.out(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v))


class ByTheFirstRows(Packed):
    def both(self, key: Tensor) -> tuple[Tensor, ...]:
        return self.rows(key, 0, 2).chunk(2, -1)  # here


class WithoutPositionsToItself(Packed):
    """To another sequence, and not to itself, tokens keep their scale: that is another attention on purpose."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        is_itself = query.data_ptr() == key.data_ptr()
        return super().forward(query, key, value) * (0.5 if is_itself else 1.0)


def of_tokens(kind: type[nn.Module]) -> Invocation:
    """A call of queries, keys and values without heads."""
    module = kind()
    prepare(module, 1)
    given = {name: drawn(2, 4, WIDTH, seed=seed) for seed, name in enumerate(("query", "key", "value"))}
    streams = [Stream(name, role, 0, (1,)) for name, role in zip(given, "qkv", strict=True)]
    return Invocation(module, given, [*given], streams)


CASES = [
    Case("one-tensor-as-two", ByTheFirstRows, Packed, of_tokens),
    Case("one-tensor-as-two", ByTheFirstRows, WithoutPositionsToItself, of_tokens),
]
