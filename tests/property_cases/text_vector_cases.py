"""Models that return one vector for each text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import WIDTH, Case, drawn, joined, split
from property_cases.token_id_cases import VOCAB
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

PLACES = drawn(12, WIDTH, seed=52)


class OfTexts(nn.Module):
    """Reads a text in order. It is padded on the right, and what is read of it is the state at the eos token."""

    def __init__(self) -> None:
        super().__init__()
        self.pad_id, self.eos_id = 0, 1
        self.embedding, self.qkv = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + PLACES[: ids.shape[1]]
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1) == 1
        x = x + joined((q @ k.mT / 2).masked_fill(later, -torch.inf).softmax(-1) @ v)
        return x[torch.arange(len(ids)), self.at(ids)]  # here

    def at(self, ids: Tensor) -> Tensor:
        return (ids == self.eos_id).int().argmax(-1)


class ReadAtTheLargestId(OfTexts):
    """Reads a text in order. What is read of it is the state at the eos token."""

    def at(self, ids: Tensor) -> Tensor:
        return ids.argmax(-1)


class ReadAtTheLastId(OfTexts):
    """Reads a text in order. What is read is the state at the eos token, which is the last id of the vocabulary."""

    def at(self, ids: Tensor) -> Tensor:
        return ids.argmax(-1)


class ReadInTheLastPlace(OfTexts):
    """Reads a text in order, which is padded on the right."""

    def at(self, ids: Tensor) -> Tensor:
        return torch.full((len(ids),), ids.shape[1] - 1)


class ReadAtTheLastWord(OfTexts):
    """Reads a text in order, which is padded on the right."""

    def at(self, ids: Tensor) -> Tensor:
        return (ids != self.pad_id).sum(-1) - 1


class ReadAtTheEndOfTheRow(OfTexts):
    """Reads a text in order. Texts are padded on the left."""

    def at(self, ids: Tensor) -> Tensor:
        return torch.full((len(ids),), ids.shape[1] - 1)


class MeanOfTheWords(nn.Module):
    """The vector of a text does not depend on how far it is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.pad_id = 0
        self.embedding, self.qkv = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        kept = (ids != self.pad_id)[..., None]
        x = self.embedding(ids) + PLACES[: ids.shape[1]]
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        x = x + joined((q @ k.mT / 2).masked_fill(~kept[:, None].mT, -torch.inf).softmax(-1) @ v)
        return self.mean(x * kept, kept)

    def mean(self, x: Tensor, kept: Tensor) -> Tensor:
        return x.sum(1) / kept.sum(1)


class MeanOfThePlaces(MeanOfTheWords):
    """The vector of a text does not depend on how far it is padded."""

    def mean(self, x: Tensor, kept: Tensor) -> Tensor:
        return x.mean(1)  # here


class MeanOfThePlacesUnsaid(MeanOfThePlaces):
    """The vector of a text."""


class OfMaskedTexts(OfTexts):
    """Reads texts in order, which are padded on the right."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        x = self.embedding(ids) + PLACES[: ids.shape[1]]
        q, k, v = (split(each) for each in self.qkv(x).chunk(3, -1))
        seen = (torch.ones(ids.shape[1], ids.shape[1]).tril() == 1) & mask[:, None, None].bool()
        x = x + joined((q @ k.mT / 2).masked_fill(~seen, -torch.inf).softmax(-1) @ v)
        return x[torch.arange(len(ids)), self.last(mask)]  # here

    def last(self, mask: Tensor) -> Tensor:
        return mask.long().sum(-1) - 1


class InTheLastPlaceOfAll(OfMaskedTexts):
    def last(self, mask: Tensor) -> Tensor:
        return torch.full((len(mask),), mask.shape[1] - 1)


InTheLastPlaceOfAll.__doc__ = OfMaskedTexts.__doc__


def of_masked_words(kind: type[OfTexts]) -> Invocation:
    """The same with a mask that hides none of them."""
    call = of_words(kind)
    (name,) = call.arguments
    call.arguments["mask"] = torch.ones_like(call.arguments[name])
    call.masks, call.positional = ["mask"], [name, "mask"]
    return call


def of_words(kind: type[nn.Module]) -> Invocation:
    """Of texts in which no token closes them, and no padding is."""
    module = kind()
    prepare(module, 1)
    ids = torch.randint(2, VOCAB, (2, 6), generator=torch.Generator().manual_seed(3))
    call = tokens_call(module, ids)
    call.streams[0].role = "ids"
    return call


CASES = [
    Case("read-at-the-end", ReadAtTheLargestId, OfTexts, of_words),
    Case("read-at-the-end", ReadAtTheLargestId, ReadAtTheLastId, of_words),
    Case("padding-behind-unread", ReadInTheLastPlace, ReadAtTheLastWord, of_words),
    Case("padding-behind-unread", ReadInTheLastPlace, ReadAtTheEndOfTheRow, of_words),
    Case("padding-behind-unread", InTheLastPlaceOfAll, OfMaskedTexts, of_masked_words),
    Case("padding-behind-unread", MeanOfThePlaces, MeanOfTheWords, of_words),
    Case("padding-behind-unread", MeanOfThePlaces, MeanOfThePlacesUnsaid, of_words),
]
