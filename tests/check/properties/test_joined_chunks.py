"""Chunks of the rows of all samples: a length that is of no whole chunks runs by accident, and mixes samples."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from regard.check.analyses import analyzed
from regard.check.properties.analysis import said_by
from regard.check.target import invocations

pytestmark = pytest.mark.more


class Chunks(nn.Module):
    """Tokens attend to those of their chunk."""

    def __init__(self, dim: int, heads: int, chunk: int = 4) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def keys(self, k: Tensor) -> Tensor:
        return k

    def attended(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, self.keys(k), self.keys(v)).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attended(x.reshape(-1, self.chunk, x.shape[-1])).reshape(x.shape))


class SortedChunks(Chunks):
    """Tokens are sorted along a direction, attend in chunks, and go back to their places."""

    def forward(self, x: Tensor) -> Tensor:
        order = x.sum(-1).argsort(1)[..., None].expand_as(x)
        return super().forward(x.gather(1, order)).gather(1, order.argsort(1))


class KeysOfOtherSamples(Chunks):
    """The same of which each chunk reads one of another sample."""

    def keys(self, k: Tensor) -> Tensor:
        return k.flip(0)


@pytest.mark.parametrize(("kind", "said"), [(Chunks, "right"), (SortedChunks, "right"), (KeysOfOtherSamples, "wrong")])
def test_a_length_that_is_of_no_whole_chunks_is_not_judged(kind: type[nn.Module], said: str) -> None:
    found, _ = analyzed(invocations(kind, args={"dim": 32, "heads": 4}))
    assert said_by(found) == said
