"""Language models that compute their loss themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.token_id_cases import PLACES, VOCAB, causal_of, of_ids
from regard.check.target import Invocation, Stream


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


class OfProbabilities(LanguageModel):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        wanted = labels[:, self.last].flatten()
        return nn.functional.cross_entropy(logits.softmax(-1)[:, self.first].flatten(0, 1), wanted)  # here


class OfProbabilitiesWithoutALogarithm(LanguageModel):
    logarithm = False

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        shares = logits.log_softmax(-1) if self.logarithm else logits.softmax(-1)
        return nn.functional.nll_loss(shares[:, self.first].flatten(0, 1), labels[:, self.last].flatten())  # here


class OfLogProbabilities(OfProbabilitiesWithoutALogarithm):
    logarithm = True


class OfLogitsAsTheyAre(LanguageModel):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        wanted = labels[:, self.last].flatten()
        return nn.functional.nll_loss(logits[:, self.first].flatten(0, 1), wanted)  # here


class OfTheTokenBefore(LanguageModel):
    first, last = slice(1, None), slice(None, -1)


class OfTheTokenItself(LanguageModel):
    """Its labels are the input ids."""

    first, last = slice(None), slice(None)


class OfWhatIsHandedOver(LanguageModel):
    """Its labels are the tokens that come next."""

    first, last = slice(None), slice(None)


class Restoring(nn.Module):
    """Reads the labels one place later than it is to tell them."""

    shift = 1

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.double()

    def forward(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        before = nn.functional.pad(labels, (self.shift, 0), value=VOCAB - 1)[:, : labels.shape[1]]
        logits = self.head(causal_of(self.words(before) + PLACES[: before.shape[1]]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits  # here


class RestoringWhatItReads(Restoring):
    """Reads the labels themselves."""

    shift = 0


class WithAMethod(nn.Module):
    """Its loss is computed by a method of its own, of what its call takes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(causal_of(self.words(ids) + PLACES[: ids.shape[1]]))
        return logits

    def training_loss(self, ids: Tensor) -> Tensor:
        return self.compared(self(ids[:, :-1]), ids[:, 1:])

    def compared(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())  # here


class WithAMethodThatCopies(WithAMethod):
    def training_loss(self, ids: Tensor) -> Tensor:
        return self.compared(self(ids), ids)


class WithAMethodThatShiftsLogits(WithAMethod):
    def training_loss(self, ids: Tensor) -> Tensor:
        return self.compared(self(ids)[:, :-1], ids[:, 1:])


class WithAMethodOfAnEncoder(WithAMethod):
    """Restores a text of which it sees all, as an autoencoder does."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + PLACES[: ids.shape[1]]
        return self.head((x @ x.mT / WIDTH**0.5).softmax(-1) @ x)

    def training_loss(self, ids: Tensor) -> Tensor:
        return self.compared(self(ids), ids)


class WithAMethodThatSeesAll(WithAMethod):
    """Its loss asks for the next token."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + PLACES[: ids.shape[1]]
        return self.head((x @ x.mT / WIDTH**0.5).softmax(-1) @ x)


class ReadsItsLabels(LanguageModel):
    """Where it is given no ids, it reads its labels, one place later."""

    first, last = slice(None), slice(None)

    def forward(self, ids: Tensor | None = None, labels: Tensor | None = None) -> tuple[Tensor, Tensor] | Tensor:
        if ids is None:
            assert labels is not None
            ids = nn.functional.pad(labels, (1, 0))[:, :-1]
        return super().forward(ids, labels)


class ShiftsThemTwice(ReadsItsLabels):
    """And compares with them one place later again."""

    first, last = slice(None, -1), slice(1, None)


class WithALossOfLabels(WithAMethod):
    """Its loss takes labels besides, and has the classes in the second axis."""

    def training_loss(self, ids: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return nn.functional.cross_entropy(self.turned(self(ids)), labels)  # here

    def turned(self, logits: Tensor) -> Tensor:
        return logits.mT


class WithALossOfReshapedLogits(WithALossOfLabels):
    def turned(self, logits: Tensor) -> Tensor:
        return logits.view(len(logits), VOCAB, -1)


class OfLogarithms(WithAMethod):
    axis = -1

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).log_softmax(self.axis)  # here


class OfLogarithmsOverTokens(OfLogarithms):
    axis = 1


def of_labels_of(kind: Any) -> Invocation:
    """A call of a module that is given its labels alone."""
    call = of_ids_of(kind)
    (ids,) = call.arguments.values()
    return replace(call, arguments={"labels": ids}, positional=["labels"], streams=[Stream("labels", "ids", 0, (1,))])


def of_named_ids_of(kind: Any) -> Invocation:
    """The same of its ids, by their name."""
    call = of_labels_of(kind)
    ids = call.arguments["labels"]
    return replace(call, arguments={"ids": ids}, positional=["ids"], streams=[Stream("ids", "ids", 0, (1,))])


def of_optional_ids_of(kind: Any) -> Invocation:
    """A call of a module that may be given its labels in place of ids."""
    call = of_ids_of(kind)
    (ids,) = call.arguments.values()
    return replace(call, arguments={"ids": ids}, positional=["ids"], streams=[Stream("ids", "ids", 0, (1,))])


def of_ids_of(kind: Any) -> Invocation:
    """A call of a module of token ids."""
    torch.manual_seed(0)
    return of_ids(kind())


CASES = [
    Case("labels-of-the-next", OfTheTokenBefore, LanguageModel, of_ids_of),
    Case("labels-of-the-next", OfTheTokenBefore, OfWhatIsHandedOver, of_ids_of),
    Case("loss-of-logits", OfProbabilities, LanguageModel, of_ids_of),
    Case("loss-of-logits", OfProbabilitiesWithoutALogarithm, OfLogProbabilities, of_ids_of),
    Case("loss-of-logits", OfLogitsAsTheyAre, OfLogProbabilities, of_ids_of),
    Case("labels-of-the-next", RestoringWhatItReads, Restoring, of_labels_of),
    *(
        Case("labels-of-the-next", WithAMethodThatCopies, right, of_named_ids_of)
        for right in (WithAMethod, WithAMethodThatShiftsLogits, WithAMethodOfAnEncoder)
    ),
    Case("labels-of-the-next", WithAMethodThatSeesAll, WithAMethod, of_named_ids_of),
    Case("labels-of-the-next", OfTheTokenItself, LanguageModel, of_ids_of),
    Case("probabilities-of-classes", OfLogarithmsOverTokens, OfLogarithms, of_named_ids_of),
    Case("probabilities-of-classes", WithALossOfReshapedLogits, WithALossOfLabels, of_named_ids_of),
    Case("labels-of-the-next", ShiftsThemTwice, ReadsItsLabels, of_optional_ids_of),
]
