"""Translators as PyTorch's own tutorial writes them: tokens come first, and the id of padding is a setting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.token_id_cases import VOCAB, ids_call
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Translator(nn.Module):
    def __init__(self, pad_idx: int = 1) -> None:
        super().__init__()
        self.pad_idx = pad_idx
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.places = nn.Parameter(torch.randn(9, 1, WIDTH))
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 3 * WIDTH)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, 2, 3 * WIDTH)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places[: len(ids)]

    def padding(self, ids: Tensor) -> Tensor:
        return (ids == self.pad_idx).T

    def past(self, count: int) -> Tensor | None:
        return torch.ones(count, count, dtype=torch.bool).triu(1)

    def of_source(self, count: int) -> Tensor | None:
        return None

    def padding_of_memory(self, source: Tensor) -> Tensor | None:
        return self.padding(source)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.embedded(source), self.of_source(len(source)), self.padding(source))
        hidden = self.padding(target), self.padding_of_memory(source)
        return self.head(self.decoder(self.embedded(target), memory, self.past(len(target)), None, *hidden))


class PaddingOfMemorySeen(Translator):
    def padding_of_memory(self, source: Tensor) -> Tensor | None:
        return None


class TargetAsAWhole(Translator):
    def past(self, count: int) -> Tensor | None:
        return None


class SourceInItsOrder(Translator):
    def of_source(self, count: int) -> Tensor | None:
        return self.past(count)


class TwoLayers(Translator):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(self.decoder, 2)  # type: ignore[assignment]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.embedded(source), None, self.padding(source))
        hidden = self.padding(target), self.padding(source)
        return self.head(self.decoder(self.placed(target), memory, self.past(len(target)), None, *hidden))

    def placed(self, target: Tensor) -> Tensor:
        return self.embedded(target)


class CountedFromTheLast(TwoLayers):
    def placed(self, target: Tensor) -> Tensor:
        return self.words(target) + self.places[-len(target) :]


def tokens_first(kind: Any) -> Invocation:
    """A call of a module of two sequences of ids (tokens, samples), without padding."""
    module = kind()
    prepare(module, 1)
    ids = {name: value.mT.contiguous() for name, value in ids_call(module, 5, 4).arguments.items()}
    ids = {name: torch.where(value == module.pad_idx, 0, value) for name, value in ids.items()}
    streams = [Stream(name, "ids", 1, (0,)) for name in ids]
    return Invocation(module, ids, [*ids], streams, sizes={"vocab": VOCAB})


CASES = [
    Case("padding-by-ids", PaddingOfMemorySeen, Translator, tokens_first, has_line=False, attentions=3),
    Case("target-causal", TargetAsAWhole, Translator, tokens_first, has_line=False, attentions=3),
    Case("positions-from-the-start", CountedFromTheLast, TwoLayers, tokens_first, has_line=False, attentions=5),
    Case("source-whole", SourceInItsOrder, Translator, tokens_first, has_line=False, attentions=3),
]
