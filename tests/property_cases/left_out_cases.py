"""What stands in the file of a model and is not used: a class of positions, and a head that a comment leaves out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class PositionTable(nn.Module):
    """That no line here names again."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1]))


class OfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(self.words(ids)).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


class OfWordsInNoOrder(OfWords):
    """A set of words: there are no positions in it."""


def of_ids(kind: Any) -> Invocation:
    """A call with ids."""
    module = kind()
    prepare(module, 1)
    ids = torch.arange(1, 9).view(2, 4)
    return Invocation(module, {"ids": ids}, ["ids"], [Stream("ids", "ids", 0, (1,))], sizes={"vocab": 12})


class PredictsActions(nn.Module):
    """It has a head that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.of_action = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)
        self.pred_state = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return self.of_action(joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v))


class PredictsActionsOnPurpose(PredictsActions):
    def forward(self, x: Tensor) -> Tensor:
        # we do not predict the states here, only actions
        return super().forward(x)


CASES = [
    Case("positions-without-effect", OfWords, OfWordsInNoOrder, of_ids, has_line=False),
    Case("parameters-used", PredictsActions, PredictsActionsOnPurpose, of_module, has_line=False),
]
