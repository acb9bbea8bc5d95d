"""Tables of rotations whose last axis holds a cosine and a sine."""

from __future__ import annotations

import torch
from target_calls import attention, first
from torch import Tensor, nn

from regard.check.properties.analyze import analyze
from regard.check.target import invocations


def rotated_by_a_viewed_table(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """A table of other axes may have as many numbers."""
    pairs = x.unflatten(-1, (-1, 2))
    freqs_cis = freqs_cis.view(1, x.shape[1], 1, -1, 2)
    one = pairs[..., 0] * freqs_cis[..., 0] - pairs[..., 1] * freqs_cis[..., 1]
    other = pairs[..., 1] * freqs_cis[..., 0] + pairs[..., 0] * freqs_cis[..., 1]
    return torch.stack((one, other), -1).flatten(-2).type_as(x)


class OfWideHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_dim, self.qkv = 16, nn.Linear(64, 192)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).unbind(2)
        q, k = (rotated_by_a_viewed_table(each, freqs_cis) for each in (q, k))
        return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).flatten(2)


class BlockOfWideHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = OfWideHeads()

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        return x + self.attention(x, freqs_cis)


def made_block() -> nn.Module:
    return BlockOfWideHeads()


def test_a_table_whose_parts_are_read_is_of_no_complex_numbers() -> None:
    call = first(made_block)
    assert not call.arguments["freqs_cis"].is_complex()
    assert [each.property for each in analyze(call).designs if each.step == "positions"] == ["rotary"]


class OfTwoParts(nn.Module):
    """Half of the channels are rotated by the row, half by the column, each half by halves of its own."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(dim, 3 * dim)

    def turned(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        parts = zip(*(each.chunk(2, -1) for each in (x, rope_cos, rope_sin)), strict=True)
        return torch.cat([each * cos + self.rotate_half(each) * sin for each, cos, sin in parts], -1)

    def rotate_half(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return torch.cat((-other, one), -1)

    def forward(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        q, k = (self.turned(each, rope_cos, rope_sin) for each in (q, k))
        return attention(q, k, v).transpose(1, 2).flatten(2)


def test_wider_heads_may_need_a_table_of_another_order_than_narrow_ones() -> None:
    for each in invocations(OfTwoParts, args={}):
        analysis = analyze(each)
        assert (analysis.violations, analysis.missing) == ([], [])
