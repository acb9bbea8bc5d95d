"""Methods of causal models that read out one token, to rank items by what was bought before."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.masked_label_cases import WORDS, of_words


class Ranks(nn.Module):
    """The last item has read all of those that were bought before it."""

    place = -1
    is_causal = True

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.words(ids)).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5
        if self.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1) == 1, -torch.inf)
        return self.words(ids) + scores.softmax(-1) @ v

    def predict(self, ids: Tensor, items: Tensor) -> Tensor:
        read = self(ids)[:, self.place]
        return self.words(items).matmul(read[..., None])[..., 0]


class RanksByTheFirst(Ranks):
    place = 0

    def predict(self, ids: Tensor, items: Tensor) -> Tensor:  # here
        return super().predict(ids, items)


class RanksByTheFirstOfAll(RanksByTheFirst):
    """Each item sees all others."""

    is_causal = False


CASES = [
    Case("read-behind-the-text", RanksByTheFirst, Ranks, of_words),
    Case("read-behind-the-text", RanksByTheFirst, RanksByTheFirstOfAll, of_words),
]
