"""Methods beside the call that nothing calls, and the sizes of their axes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width, self.heads = WIDTH, HEADS
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / (WIDTH / HEADS) ** 0.5).softmax(-1) @ v)


class OfAQuotient(Attends):
    def of_one(self, x: Tensor) -> Tensor:
        d = self.width / self.heads
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (each.reshape(len(x), -1, self.heads, 8) for each in (q, k, v))
        k = k.view([len(x), -1, self.heads, d])  # here
        return (q @ k.mT / d**0.5).softmax(-1) @ v


class OfWholeSizes(Attends):
    def of_one(self, x: Tensor) -> Tensor:
        d = int(self.width / self.heads)
        q, k, v = self.qkv(x).chunk(3, -1)
        q = torch.reshape(q / self.heads, (len(x), -1, self.heads, d))
        k, v = (each.view(len(x), -1, self.heads, d) for each in (k, v))
        scale = self.width / self.heads
        d = q.sum() / scale
        return (q @ k.mT * self.view(d, scale)).softmax(-1) @ v

    def view(self, number: Tensor, scale: float) -> Tensor:
        return number / scale


CASES = [Case("whole-sizes", OfAQuotient, OfWholeSizes, of_module)]
