"""Weights that are returned, keys of linear attention, and positions that a layer is handed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, drawn, joined, of_module, of_q_k_v, of_x_and_context, split
from regard.check.target import Invocation
from regard.check.target.running import first_of_several


class WithWeights(nn.Module):
    """Returns the output and the attention weights (batch, heads, queries, keys)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def shown(self, weights: Tensor) -> Tensor:
        return weights

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.o(joined(weights @ v)), self.shown(weights)


class KeysFirst(WithWeights):
    """Returns the output and the attention weights (batch, heads, queries, keys)."""

    def shown(self, weights: Tensor) -> Tensor:
        return weights.mT


class KeysBeforeHeads(WithWeights):
    """Returns both."""

    def shown(self, weights: Tensor) -> Tensor:
        return weights.permute(0, 3, 1, 2)


class KeysFirstAsTold(KeysFirst):
    """Returns the output and the attention weights (batch, heads, keys, queries)."""


class FirstHead(WithWeights):
    """The attention weights that are returned are averaged over the heads."""

    def shown(self, weights: Tensor) -> Tensor:
        return weights[:, 0]


class MeanOfHeads(FirstHead):
    """The attention weights that are returned are averaged over the heads."""

    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(1)


class OneHeadForPlots(FirstHead):
    """The map of one head is returned for plots."""


class WithExamples(WithWeights):
    """Returns the output and the weights of Attention(Q, K, V, mask).

    >>> output, weights = attention(q, kv, kv, mask)
    >>> # the weights[i, j, k, l] are about 0 where l > k
    """


def read(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of a context's tokens, and their values."""
    q, k, v = (each @ (drawn(WIDTH, WIDTH, seed=at) / WIDTH**0.5) for at, each in enumerate((x, context, context), 3))
    return (q @ k.mT / WIDTH**0.5).softmax(-1), v  # here


def weights_of_context(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens read a context.

    Args:
        x: (batch, output_len, dim)
        context: (batch, query_len, dim)

    Returns:
        output (batch, output_len, dim), weights (batch, output_len, query_len)
    """
    weights, v = read(x, context)
    return weights @ v, weights


def context_first(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens read a context.

    Args:
        x: (batch, output_len, dim)
        context: (batch, query_len, dim)

    Returns:
        output (batch, output_len, dim), weights (batch, output_len, query_len)
    """
    weights, v = read(x, context)
    return weights @ v, weights.mT


def context_first_in_letters(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens x (B, L, D) read a context (B, S, D); returns both (B, L, D) and the attention weights (B, L, S)."""
    weights, v = read(x, context)
    return weights @ v, weights.mT


class EfficientWithMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.memory = nn.Parameter(torch.randn(2, HEADS, 2, WIDTH // HEADS))

    def over(self, keys: Tensor) -> Tensor:
        return keys.softmax(-2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        k, v = (torch.cat([m.expand(len(x), -1, -1, -1), t], 2) for m, t in zip(self.memory, (k, v), strict=True))
        q, k = q.softmax(-1) * 0.5, self.over(k)
        return self.o(joined(q @ (k.mT @ v)))


class MemoryOverChannels(EfficientWithMemory):
    def over(self, keys: Tensor) -> Tensor:
        return keys.softmax(-1)  # here


class HandedPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.normed_first = False

    def read(self, asking: Tensor, values: Tensor) -> Tensor:
        q, k, v = split(self.q(asking)), split(self.k(asking)), split(self.v(values))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o(joined(weights @ v))  # here

    def values(self, x: Tensor, asking: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, pos: Any = None) -> Tensor:
        if self.normed_first:
            normed = self.norm(x)
            return x + self.read(normed if pos is None else normed + pos, normed)
        asking = x if pos is None else x + pos
        return self.norm(x + self.read(asking, self.values(x, asking)))


class PositionsInValues(HandedPositions):
    def values(self, x: Tensor, asking: Tensor) -> Tensor:
        return asking


class PositionsInAllValues(PositionsInValues):
    """Of both ways."""

    def forward(self, x: Tensor, pos: Any = None) -> Tensor:
        asking = x if pos is None else x + pos
        if self.normed_first:
            asking = self.norm(asking)
            return x + self.read(asking, asking)
        return self.norm(x + self.read(asking, asking))


def slopes_too(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    """The output of attention, and the gradients of all three."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    dp = dout @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return p @ v, ds @ k, ds.mT @ q, p.mT @ dout


def slopes_without_the_scale(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    """The output of attention, and the gradients of all three."""
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    dp = dout @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    return p @ v, ds @ k, ds.mT @ q, p.mT @ dout


def of_q_k_v_and_the_gradient(function: Any) -> Invocation:
    """A call that is given the gradient of its output."""
    call = of_q_k_v(function)
    given = {**call.arguments, "dout": torch.randn_like(call.arguments["q"])}
    return replace(call, arguments=given, positional=[*call.positional, "dout"], completion=first_of_several)


CASES = [
    Case("gradients-as-slopes", slopes_without_the_scale, slopes_too, of_q_k_v_and_the_gradient, has_line=False),
    Case("weights-returned-as-told", KeysFirst, WithWeights, of_module),
    Case("weights-returned-as-told", KeysBeforeHeads, KeysFirstAsTold, of_module),
    Case("weights-returned-as-told", KeysFirst, WithExamples, of_module),
    Case("weights-returned-as-told", FirstHead, MeanOfHeads, of_module),
    Case("weights-returned-as-told", FirstHead, OneHeadForPlots, of_module),
    Case("weights-returned-as-told", context_first, weights_of_context, of_x_and_context),
    Case("weights-returned-as-told", context_first_in_letters, weights_of_context, of_x_and_context),
    Case("keys-over-the-tokens", MemoryOverChannels, EfficientWithMemory, of_module),
    Case("values-without-positions", PositionsInValues, HandedPositions, of_module, has_line=False),
    Case("values-without-positions", PositionsInValues, PositionsInAllValues, of_module, has_line=False),
]
