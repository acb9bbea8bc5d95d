"""Tokens of which some are kept, in another order, and that are put back beside tokens in the place of the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, split

PLACES = drawn(8, WIDTH, seed=60)
KEPT = 3
ORDER = torch.tensor([[2, 0, 3, 1], [2, 0, 3, 1]])


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.encoder, self.decoder = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.read(self.ordered(x + PLACES[: x.shape[1]], ORDER[:, :KEPT]), self.encoder)
        others = self.mask_token.expand(len(x), x.shape[1] - KEPT, -1)
        whole = self.ordered(torch.cat([kept, others], 1), self.back())
        return self.read(whole + PLACES[: x.shape[1]], self.decoder)

    def read(self, x: Tensor, qkv: nn.Linear) -> Tensor:
        q, k, v = (split(each) for each in qkv(x).chunk(3, -1))
        return x + joined((q @ k.mT / 2).softmax(-1) @ v)

    def ordered(self, x: Tensor, order: Tensor) -> Tensor:
        return x.gather(1, order[..., None].expand(-1, -1, WIDTH))  # here

    def back(self) -> Tensor:
        return ORDER.argsort(1)


class PutBackByTheSameOrder(Masked):
    def back(self) -> Tensor:
        return ORDER


class InAnOrderThatIsItsInverse(Masked):
    def ordered(self, x: Tensor, order: Tensor) -> Tensor:
        swapped = torch.tensor([1, 0, 2, 3]).expand(2, -1)[:, : order.shape[1]]
        return super().ordered(x, swapped)


CASES = [
    Case("order-restored", PutBackByTheSameOrder, Masked, of_module, attentions=2),
    Case("order-restored", PutBackByTheSameOrder, InAnOrderThatIsItsInverse, of_module, attentions=2),
]
