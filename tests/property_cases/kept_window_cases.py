"""A window of which a module keeps another number than it was told, and one that opens what a causal mask hides."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import Case
from regard.check.target import Invocation, invocations
from regard.check.target.preparation import prepare


class Near(nn.Module):
    """Causal attention: a token sees `window` tokens: itself and the `window - 1` before it."""

    def __init__(self, width: int = 16, heads: int = 2, window: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.window_size = window - 1  # how many come before
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def farthest(self) -> int:
        return self.window_size

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5  # here
        seen = scores.new_ones(scores.shape[-2:]).tril().triu(-self.farthest())
        weights = scores.masked_fill(seen == 0, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class OneLessTwice(Near):
    """Causal attention: a token sees `window` tokens: itself and the `window - 1` before it."""

    def farthest(self) -> int:
        return self.window_size - 1


class HiddenTwice(nn.Module):
    """Causal attention within a window."""

    def __init__(self, width: int = 16, heads: int = 2, window: int = 6) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def hidden(self, ones: Tensor) -> Tensor:
        return ones.triu(1) + ones.tril(-self.window)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5  # here
        hidden = self.hidden(scores.new_ones(scores.shape[-2:]))
        return self.out((scores.masked_fill(hidden > 0, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2))


class CutOff(HiddenTwice):
    """Causal attention within a window."""

    def hidden(self, ones: Tensor) -> Tensor:
        return ones.triu(1).tril(self.window)


class CutOffByDistance(HiddenTwice):
    """Causal attention within a window."""

    def hidden(self, ones: Tensor) -> Tensor:
        ahead = torch.arange(len(ones)) - torch.arange(len(ones))[:, None]
        return ((ahead > 0) & (ahead < self.window)).to(ones)


def as_found(kind: type[nn.Module]) -> Invocation:
    """The first call of a module that is found."""
    module = kind()
    prepare(module, 1)
    return next(invocations(module, args={}))


CASES = [
    Case("window-as-documented", OneLessTwice, Near, as_found),
    Case("window-as-documented", CutOff, HiddenTwice, as_found),
    Case("window-as-documented", CutOffByDistance, HiddenTwice, as_found),
]
