"""Caches of decoders to which positions may be told, and which count the cached tokens where they are not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x
from property_cases.cache_cases import TABLE, Past, projected
from regard.check.target import Invocation


def of_x_alone(kind: type[nn.Module]) -> Invocation:
    return of_x(kind())


class GoesOn(nn.Module):
    """Causal attention; positions that are not told go on behind the cache."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None, past: Past = None) -> tuple[Tensor, Past]:
        past_length = 0
        if past is not None:
            past_length = past[0].size(-2)
        if position_ids is None:
            position_ids = torch.arange(past_length, past_length + x.shape[1])
        return self.attended(x, position_ids, past)

    def attended(self, x: Tensor, position_ids: Tensor, past: Past) -> tuple[Tensor, Past]:
        q, k, v = projected(x + TABLE[position_ids], past)
        allowed = torch.ones(q.shape[-2], k.shape[-2]).tril(k.shape[-2] - q.shape[-2]).bool()
        weights = (q @ k.mT / (WIDTH // 2) ** 0.5).masked_fill(~allowed, -1e9).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2), (k, v)


class BeginsAnew(GoesOn):
    def forward(self, x: Tensor, position_ids: Tensor | None = None, past: Past = None) -> tuple[Tensor, Past]:
        past_length = 0
        if past is not None:
            past_length = past[0].size(-2)  # noqa: F841  # here
        if position_ids is None:
            position_ids = torch.arange(0, x.shape[1])
        return self.attended(x, position_ids, past)


class IsToBeTold(GoesOn):
    """Who has a cache hands positions over: nothing counts what is in it."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None, past: Past = None) -> tuple[Tensor, Past]:
        if position_ids is None:
            position_ids = torch.arange(0, x.shape[1])
        return self.attended(x, position_ids, past)


CASES = [
    Case("cache-positions", BeginsAnew, GoesOn, of_x_alone),
    Case("cache-positions", BeginsAnew, IsToBeTold, of_x_alone),
]
