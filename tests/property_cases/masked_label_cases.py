"""Masked language models that hide tokens themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.token_id_cases import PLACES, of_ids
from regard.check.target import Invocation, Stream

WORDS, HIDING = 30, 2


class OfHiddenWords(nn.Module):
    """Every third word is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.words(ids) + PLACES[: ids.shape[1]]).chunk(3, -1)
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v  # type: ignore[no-any-return]

    def mask_words(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (torch.arange(ids.shape[1]) % 3 == 0).expand(ids.shape)
        inputs = self.kept(ids)
        inputs[hidden] = HIDING
        return inputs, torch.where(hidden, ids, -100)

    def kept(self, ids: Tensor) -> Tensor:
        return ids.clone()


class WrittenOver(OfHiddenWords):
    def kept(self, ids: Tensor) -> Tensor:
        return ids


class ToldWhetherHidden(WrittenOver):
    """Nothing is predicted but whether a word was hidden."""

    def mask_words(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        inputs, labels = super().mask_words(ids)
        return inputs, (labels >= 0).long()


def of_words(kind: Any) -> Invocation:
    torch.manual_seed(0)
    call = of_ids(kind())
    (ids,) = call.arguments.values()
    call.arguments, call.positional = {"ids": ids}, ["ids"]
    call.streams = [Stream("ids", "ids", 0, (1,))]
    return call


CASES = [
    Case("labels-of-what-stood-there", WrittenOver, OfHiddenWords, of_words, has_line=False),
    Case("labels-of-what-stood-there", WrittenOver, ToldWhetherHidden, of_words, has_line=False),
]
