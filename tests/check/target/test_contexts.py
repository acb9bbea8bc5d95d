"""A size that is named as a part of a sequence, and is how many tokens a model reads at most."""

from __future__ import annotations

import pytest
import torch
from target_calls import first
from torch import Tensor, nn

from regard.check.target.usage import is_context, is_part


class ReadsABlock(nn.Module):
    """A row of a table for each place, and a mask as large as all places."""

    def __init__(self, vocab: int = 50, d: int = 32, block: int = 256) -> None:
        super().__init__()
        self.block = block
        self.words, self.places = nn.Embedding(vocab, d), nn.Embedding(block, d)
        self.qkv = nn.Linear(d, 3 * d)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(x).chunk(3, -1)
        later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1) @ v


def test_a_context_of_one_block_is_as_long_as_a_text() -> None:
    call = first(ReadsABlock)
    assert call.target.block == 16
    assert call.arguments["ids"].shape[1] > 2


@pytest.mark.parametrize(
    ("source", "is_all"),
    [
        ("self.places = nn.Embedding(block, d)", True),
        ("self.block = block\nids = ids[:, -self.block:]", True),
        ("self.places = nn.Embedding(block, d)\nx = x.view(b, n // block, block, d)", False),
        ("self.places = nn.Embedding(blocks, d)", False),
    ],
)
def test_a_table_of_places_or_a_cut_text_tells_it_unless_tokens_are_divided_by_it(source: str, is_all: bool) -> None:
    assert is_context(source, "block") is is_all
    assert is_part(source, "block") is not is_all
