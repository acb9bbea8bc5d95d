"""Language models whose words stand behind a picture, and that compute the loss of the words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.token_id_cases import PLACES, VOCAB, causal_of
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

WORDS, PATCHES = 4, 3


class BehindAPicture(nn.Module):
    """The patches of a picture, then words."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.words = nn.Linear(WIDTH, WIDTH), nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, picture: Tensor, ids: Tensor) -> Tensor:
        x = torch.cat([self.patches(picture), self.words(ids)], dim=1)
        return self.head(causal_of(x + PLACES[: x.shape[1]]))  # type: ignore[no-any-return]

    def loss(self, picture: Tensor, ids: Tensor) -> Tensor:
        logits, wanted = self.of_words(self(picture, ids), picture), ids[:, 1:].flatten()
        return nn.functional.cross_entropy(logits.flatten(0, 1), wanted)  # here

    def of_words(self, logits: Tensor, picture: Tensor) -> Tensor:
        return logits[:, picture.shape[1] : -1]


class OfTheFirst(BehindAPicture):
    def of_words(self, logits: Tensor, picture: Tensor) -> Tensor:
        return logits[:, : logits.shape[1] - picture.shape[1] - 1]


class OneTooFar(BehindAPicture):
    def of_words(self, logits: Tensor, picture: Tensor) -> Tensor:
        return logits[:, picture.shape[1] + 1 :]


class OfLabelsHandedOver(BehindAPicture):
    """Its labels are the words that come next."""

    def forward(self, picture: Tensor, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = super().forward(picture, ids)
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits[:, picture.shape[1] :].flatten(0, 1), labels.flatten())


def of_both(kind: Any) -> Invocation:
    """A call with a picture and words."""
    module = kind()
    prepare(module, 1)
    ids = torch.tensor([[1, 4, 2, 5], [3, 1, 6, 2]])
    given = {"picture": drawn(2, PATCHES, WIDTH, seed=0), "ids": ids}
    streams = [Stream("picture", "x", 0, (1,)), Stream("ids", "ids", 0, (1,))]
    return Invocation(module, given, ["picture", "ids"], streams)


CASES = [
    Case("labels-of-the-next", OfTheFirst, BehindAPicture, of_both),
    Case("labels-of-the-next", OneTooFar, BehindAPicture, of_both),
    Case("labels-of-the-next", OneTooFar, OfLabelsHandedOver, of_both),
]
