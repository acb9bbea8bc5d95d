"""Language models that compute their loss themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.token_id_cases import PLACES, VOCAB, causal_of, of_ids
from regard.check.target import Invocation


class LanguageModel(nn.Module):
    first, last = slice(None, -1), slice(1, None)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.double()

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor] | Tensor:
        logits = self.head(causal_of(self.words(ids) + PLACES[: ids.shape[1]]))
        return logits if labels is None else (self.loss(logits, labels), logits)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        wanted = labels[:, self.last].flatten()
        return nn.functional.cross_entropy(logits[:, self.first].flatten(0, 1), wanted)  # here


class OfTheTokenBefore(LanguageModel):
    first, last = slice(1, None), slice(None, -1)


class OfTheTokenItself(LanguageModel):
    """Its labels are the input ids."""

    first, last = slice(None), slice(None)


class OfWhatIsHandedOver(LanguageModel):
    """Its labels are the tokens that come next."""

    first, last = slice(None), slice(None)


def of_ids_of(kind: Any) -> Invocation:
    """A call of a module of token ids."""
    torch.manual_seed(0)
    return of_ids(kind())


CASES = [
    Case("labels-of-the-next", OfTheTokenBefore, LanguageModel, of_ids_of),
    Case("labels-of-the-next", OfTheTokenBefore, OfWhatIsHandedOver, of_ids_of),
    Case("labels-of-the-next", OfTheTokenItself, LanguageModel, of_ids_of),
]
