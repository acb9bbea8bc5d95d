"""Models that ask for a word by a mask token in its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case
from property_cases.masked_label_cases import WORDS, of_words
from property_cases.token_id_cases import PLACES


class AskedAtTheMask(nn.Module):
    """The word that comes next is asked for by a mask token behind the others."""

    def __init__(self) -> None:
        super().__init__()
        self.mask_token = WORDS
        self.words, self.qkv = nn.Embedding(WORDS + 1, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.words(ids) + PLACES[: ids.shape[1]]).chunk(3, -1)
        hidden = (ids == 0)[:, None]
        return (q @ k.mT / WIDTH**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v  # type: ignore[no-any-return]

    def next_word(self, ids: Tensor, lengths: Tensor) -> Tensor:
        rows, ids = torch.arange(len(ids)), nn.functional.pad(ids, (0, 1))
        ids[rows, lengths] = self.mask_token
        return self(ids)[rows, self.place(lengths)] @ self.words.weight.mT  # here

    def place(self, lengths: Tensor) -> Tensor:
        return lengths


class AskedBeforeTheMask(AskedAtTheMask):
    def place(self, lengths: Tensor) -> Tensor:
        return lengths - 1


class AskedAtTheLast(AskedBeforeTheMask):
    """No mask token is put anywhere."""

    def next_word(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self(ids)[torch.arange(len(ids)), lengths - 1] @ self.words.weight.mT  # type: ignore[no-any-return]


CASES = [
    Case("read-at-the-mask", AskedBeforeTheMask, AskedAtTheMask, of_words),
    Case("read-at-the-mask", AskedBeforeTheMask, AskedAtTheLast, of_words),
]
