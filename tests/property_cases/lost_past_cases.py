"""Caches whose tokens before are lost: returned without them, or written to and read at the new token's place alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_x
from property_cases.cache_cases import attended, projected
from property_cases.cache_place_cases import Buffers, told_its_start
from regard.check.target import Invocation

TABLE = torch.outer(torch.arange(4.0), torch.tensor([1.0, 0.1])).double().repeat_interleave(2, 1)
"""Angles of four tokens."""


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * cos + torch.stack([-right, left], -1).flatten(-2) * sin


class KeptBehindThePast(nn.Module):
    """Is handed the rows of the tables of its tokens: who cuts them is not known to be right."""

    def kept(self, own: tuple[Tensor, Tensor], joined: tuple[Tensor, Tensor]) -> Any:
        return joined

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor], past_key_value: Any = None) -> Any:
        q, k, v = projected(x, None)
        q, k = turned(q, *position_embeddings), turned(k, *position_embeddings)
        own, earlier = (k, v), 0
        if past_key_value is not None:
            earlier = past_key_value[0].shape[2]
            k, v = (torch.cat([one, two], 2) for one, two in zip(past_key_value, own, strict=True))
        return attended(q, k, v, earlier), self.kept(own, (k, v))  # here


class KeptBeforeThePast(KeptBehindThePast):
    def kept(self, own: tuple[Tensor, Tensor], joined: tuple[Tensor, Tensor]) -> Any:
        return own


class LastTwoKept(KeptBehindThePast):
    """A window of two tokens before."""

    def kept(self, own: tuple[Tensor, Tensor], joined: tuple[Tensor, Tensor]) -> Any:
        return tuple(each[:, :, -2:] for each in joined)

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor], past_key_value: Any = None) -> Any:
        q, k, v = projected(x, None)
        q, k = turned(q, *position_embeddings), turned(k, *position_embeddings)
        if past_key_value is not None:
            k, v = (torch.cat([one, two], 2) for one, two in zip(past_key_value, (k, v), strict=True))
        first = k.shape[2] - q.shape[2]
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        hidden = hidden.triu(first + 1) | hidden.tril(first - 3)
        scores = (q @ k.mT / 2).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), self.kept((k, v), (k, v))


def with_tables(kind: type[nn.Module]) -> Invocation:
    """A call of a module with cosines and sines of its four tokens."""
    call = of_x(kind())
    given = {**call.arguments, "position_embeddings": (TABLE.cos(), TABLE.sin())}
    return replace(call, arguments=given, positional=["x", "position_embeddings"])


class ReadsWhatItWrote(Buffers):
    """The place of the new tokens, and none before it."""

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        q, k, v = projected(x, None)
        end = start_pos + x.shape[1]
        self.cache_k[:, :, start_pos:end] = k  # here
        self.cache_v[:, :, start_pos:end] = v
        return attended(q, self.cache_k[:, :, start_pos:end], self.cache_v[:, :, start_pos:end], 0)


class TokensFirst(nn.Module):
    """Its cache has the tokens before the heads; a view of it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.k_cache, self.v_cache = (torch.zeros(2, 16, WIDTH).double() for _ in range(2))

    def begin(self, start_pos: int) -> int:
        return 0

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        q, k, v = (each.transpose(1, 2).flatten(2) for each in projected(x, None))
        end = start_pos + x.shape[1]
        self.k_cache.narrow(1, start_pos, x.shape[1]).copy_(k)  # here
        self.v_cache.narrow(1, start_pos, x.shape[1]).copy_(v)
        first = self.begin(start_pos)
        keys, values = (each[:, first:end] for each in (self.k_cache, self.v_cache))
        heads = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in (q, keys, values))
        return attended(*heads, start_pos - first)


class NewTokensAlone(TokensFirst):
    def begin(self, start_pos: int) -> int:
        return start_pos


CASES = [
    Case("cache-of-new-tokens", KeptBeforeThePast, KeptBehindThePast, with_tables, has_line=False),
    Case("cache-of-new-tokens", KeptBeforeThePast, LastTwoKept, with_tables, has_line=False),
    Case("cache-places", ReadsWhatItWrote, Buffers, told_its_start),
    Case("cache-places", NewTokensAlone, TokensFirst, told_its_start),
]
