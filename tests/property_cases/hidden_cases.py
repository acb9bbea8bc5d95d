"""Masks while a model learns, and samples that have no key left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, of_x_and_context, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        allowed = None if mask is None else mask[:, None, None]
        return x + joined(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))


class HiddenWhereItLearns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training:
            return F.dropout(self.layer(x, mask), 0.1)
        return self.layer(x, mask)


class SeenWhereItLearns(HiddenWhereItLearns):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training:
            return F.dropout(self.layer(x), 0.1)
        return self.layer(x, mask)


class MixedWhereItLearns(HiddenWhereItLearns):
    """Samples are mixed while it learns, as is meant."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training:
            return self.layer(x + 0.1 * x[torch.randperm(len(x))], mask)
        return self.layer(x, mask)


def of_mask(kind: Any) -> Invocation:
    """A call of a module that may be given a mask."""
    call = of_module(kind)
    call.masks = ["mask"]
    return call


class EmptyAveraged(nn.Module):
    """valid is True for what is remembered. A sample whose memory is empty reads zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, context: Tensor, valid: Tensor) -> Tensor:
        q, k, v = split(self.q(x)), *map(split, self.kv(context).chunk(2, -1))
        scores = (q @ k.mT / 2).masked_fill(~valid[:, None, None], -1e9)
        return joined(self.weights(scores, valid) @ v)  # here

    def weights(self, scores: Tensor, valid: Tensor) -> Tensor:
        return scores.softmax(-1)


class EmptyOfNumbers(EmptyAveraged):
    """valid is True for what is remembered. If no valid key is there, zeros are returned."""

    def weights(self, scores: Tensor, valid: Tensor) -> Tensor:
        return scores.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1)


class EmptyOfZeros(EmptyAveraged):
    """valid is True for what is remembered. A sample whose memory is empty reads zeros."""

    def weights(self, scores: Tensor, valid: Tensor) -> Tensor:
        return scores.softmax(-1).masked_fill(~valid[:, None, None], 0.0)


class EmptyUntold(EmptyAveraged):
    """valid is True for what is remembered. Positions of an empty memory start from zero."""


class EmptyMentioned(EmptyOfNumbers):
    """valid is True for what is remembered. Some samples have no memory at all."""


class EmptyAveragedWhereMentioned(EmptyAveraged):
    """valid is True for what is remembered. Some samples have no memory at all."""


class EmptyLeftToTheCaller(EmptyOfNumbers):
    """valid is True for what is remembered. Some samples have no memory at all: NaN, for the caller to mask."""


def of_memory(kind: Any) -> Invocation:
    """A call of a module with a context and a mask of it."""
    module = kind()
    prepare(module, 1)
    call = of_x_and_context(module)
    given = {**call.arguments, "valid": torch.ones(2, 3, dtype=torch.bool)}
    return replace(call, arguments=given, positional=["x", "context", "valid"], masks=["valid"])


CASES = [
    Case("hidden-in-training", SeenWhereItLearns, HiddenWhereItLearns, of_mask, has_line=False),
    Case("hidden-in-training", SeenWhereItLearns, MixedWhereItLearns, of_mask, has_line=False),
    Case("empty-reads-zeros", EmptyAveraged, EmptyOfZeros, of_memory),
    Case("empty-reads-zeros", EmptyOfNumbers, EmptyUntold, of_memory),
    Case("empty-reads-zeros", EmptyMentioned, EmptyAveragedWhereMentioned, of_memory),
    Case("empty-reads-zeros", EmptyMentioned, EmptyLeftToTheCaller, of_memory),
]
