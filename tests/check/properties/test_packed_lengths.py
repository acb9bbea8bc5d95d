"""Sequences that stand one after the other in one row, of which the lengths are handed over."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, invocations


class PackedAttention(nn.Module):
    def __init__(self, *, earlier: bool = False, apart: bool = True) -> None:
        super().__init__()
        self.qkv, self.out, self.earlier, self.apart = nn.Linear(8, 24), nn.Linear(8, 8), earlier, apart

    def forward(self, x: Tensor, seqlens: list[int]) -> Tensor:
        # x: [1, total, dim]
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        blocks = [torch.ones(length, length) for length in seqlens]
        seen = torch.block_diag(*blocks) if self.apart else torch.ones(n, n) * sum(map(len, blocks)) / n
        seen = seen.tril() if self.earlier else seen
        scores = q @ k.mT / (c // 2) ** 0.5
        read = scores.masked_fill(seen == 0, -torch.inf).softmax(-1) @ v
        return self.out(read.transpose(1, 2).reshape(b, n, c))


class CausalPackedAttention(PackedAttention):
    def forward(self, x: Tensor, seqlens: list[int]) -> Tensor:
        return super().forward(x, seqlens)  # x: [1, total, dim]


def call_of(module: nn.Module) -> Invocation:
    return next(invocations(module, args={}))


def violated(module: nn.Module) -> list[str]:
    return [each.property for each in analyze(call_of(module), masks=True).violations]


def test_the_lengths_of_sequences_in_one_row_sum_to_its_tokens() -> None:
    call = call_of(PackedAttention())
    assert call.boundaries == ["seqlens"]
    assert call.arguments["seqlens"].tolist() == [call.tokens_of(call.streams[0])]


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (PackedAttention(), []),
        (PackedAttention(apart=False), ["sequences-apart"]),
        (CausalPackedAttention(earlier=True), []),
        (CausalPackedAttention(), ["mask-pattern"]),
    ],
)
def test_sequences_of_lengths_are_kept_apart(module: nn.Module, found: list[str]) -> None:
    assert violated(module) == found
