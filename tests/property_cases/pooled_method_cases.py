"""Modules whose call returns the states of tokens, and that have a method for the vector of a text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.token_id_cases import encoded, of_ids
from regard.check.target import Invocation


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return encoded(ids, attention_mask[:, None, None] != 0) * self.scale

    def encode(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        keep = attention_mask[..., None] != 0
        return (self(ids, attention_mask) * keep).sum(1) / keep.sum(1)


class EmbedsAll(Embeds):
    def encode(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self(ids, attention_mask).mean(1)  # here


class EmbedsTheFirst(Embeds):
    def encode(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self(ids, attention_mask)[:, 0]


class ScoresItsTokens(Embeds):
    def encode(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self(ids, attention_mask).sum(-1)


def of_texts(kind: Any) -> Invocation:
    """A call of a module of token ids and a mask of these."""
    call = of_ids(kind().double())
    (name,) = call.arguments
    given = {"ids": call.arguments[name], "attention_mask": torch.ones(call.arguments[name].shape, dtype=torch.bool)}
    stream = replace(call.streams[0], argument="ids")
    return replace(call, arguments=given, positional=[*given], streams=[stream], masks=["attention_mask"])


CASES = [Case("mean-of-the-kept", EmbedsAll, right, of_texts) for right in (Embeds, EmbedsTheFirst, ScoresItsTokens)]
