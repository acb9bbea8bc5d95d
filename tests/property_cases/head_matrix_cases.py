"""Matrices W_O that are kept with an axis of the heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, of_module, split

D_HEAD = WIDTH // HEADS


class HeadsBeforeChannels(nn.Module):
    """W_O is of (heads, channels, outputs), and the heads are joined in that order."""

    order = (0, 2, 1, 3)

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.w_o = nn.Parameter(torch.randn(HEADS, D_HEAD, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / D_HEAD**0.5).softmax(-1) @ v  # here
        read = read.permute(self.order).reshape(*x.shape[:-1], WIDTH)
        return self.norm(x + read @ self.w_o.view(WIDTH, WIDTH))


class ChannelsBeforeHeads(HeadsBeforeChannels):
    order = (0, 2, 3, 1)


class ByItsHead(HeadsBeforeChannels):
    """Each head's part is applied to what it read, and the sum is taken."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        read = (q @ k.mT / D_HEAD**0.5).softmax(-1) @ v
        return self.norm(x + torch.einsum("bhtd,hde->bte", read, self.w_o))


class ChannelsFirst(HeadsBeforeChannels):
    """W_O is of (channels, heads, outputs)."""

    order = (0, 2, 3, 1)

    def __init__(self) -> None:
        super().__init__()
        self.w_o = nn.Parameter(torch.randn(D_HEAD, HEADS, WIDTH) / WIDTH**0.5)


class ValuesOfDistances(HeadsBeforeChannels):
    """A learned vector for each distance and head is added to what is read: no head is multiplied by another's."""

    def __init__(self) -> None:
        super().__init__()
        self.w_o, self.out = nn.Parameter(torch.randn(31, HEADS, D_HEAD)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[-2])
        weights = (q @ k.mT / D_HEAD**0.5).softmax(-1)
        of_distances = torch.einsum("bhqk,qkhd->bhqd", weights, self.w_o[places - places[:, None] + 15])
        return self.norm(x + self.out((weights @ v + of_distances).transpose(1, 2).flatten(2)))


CASES = [
    Case("matrix-of-its-head", ChannelsBeforeHeads, HeadsBeforeChannels, of_module),
    Case("matrix-of-its-head", ChannelsBeforeHeads, ValuesOfDistances, of_module),
    Case("matrix-of-its-head", ChannelsBeforeHeads, ByItsHead, of_module),
    Case("matrix-of-its-head", ChannelsBeforeHeads, ChannelsFirst, of_module),
]
