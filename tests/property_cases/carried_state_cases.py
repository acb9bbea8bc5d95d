"""Stacks whose layers add the scores of the layer before to their own (residual attention)."""

from __future__ import annotations

from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, split


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, prev: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if prev is None else scores + prev
        return x + self.out(joined(scores.softmax(-1) @ v)), scores


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor | None = None
        for layer in self.layers:
            x, scores = layer(x, prev=scores)
        return x


class Forgetful(Stack):
    def forward(self, x: Tensor) -> Tensor:
        scores = None
        for layer in self.layers:
            x, _ = layer(x, prev=scores)  # here
        return x


class OfAnother(Stack):
    """The scores may be those of another stack: every layer gets the same."""

    def forward(self, x: Tensor, prev: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x, prev=prev)
        return x


CASES = [
    Case("carried-to-the-next-layer", Forgetful, Stack, of_module, attentions=2),
    Case("carried-to-the-next-layer", Forgetful, OfAnother, of_module, attentions=2),
]
