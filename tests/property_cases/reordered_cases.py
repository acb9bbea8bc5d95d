"""States that a decoder keeps, whose beams are put into another order between its steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, split
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare


class Kept:
    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.real: Tensor | None = None

    def grown(self, *new: Tensor) -> list[Tensor]:
        for name, axis, each in zip(("keys", "values", "real"), (2, 2, 1), new, strict=True):
            before = getattr(self, name)
            setattr(self, name, each if before is None else torch.cat([before, each], axis))
        return [getattr(self, name) for name in ("keys", "values", "real")]

    def reorder(self, order: Tensor) -> None:
        self.keys, self.values, self.real = self.keys[order], self.values[order], self.real[order]


class KeptWithoutMasks(Kept):
    def reorder(self, order: Tensor) -> None:
        self.keys, self.values = self.keys[order], self.values[order]


class Decodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor, state: Kept | None = None) -> Tensor:
        return self.attended(x, mask, state or Kept())

    def attended(self, x: Tensor, mask: Tensor, state: Any) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        k, v, mask = state.grown(k, v, mask)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        scores = (q @ k.mT / 2).masked_fill(later | ~mask[:, None, None], -1e9)
        return joined(scores.softmax(-1) @ v)


class DecodesWithoutMasks(Decodes):
    def forward(self, x: Tensor, mask: Tensor, state: KeptWithoutMasks | None = None) -> Tensor:
        return self.attended(x, mask, state or KeptWithoutMasks())


def of_prompts(kind: Any) -> Invocation:
    """A call of a module with a mask that it has to be given."""
    module = kind()
    prepare(module, 1)
    given = {"x": drawn(3, 4, WIDTH, seed=0), "mask": torch.ones(3, 4, dtype=torch.bool)}
    return Invocation(module, given, ["x", "mask"], [Stream("x", "x", 0, (1,))], masks=["mask"])


class KeepsByName(nn.Module):
    """Steps that keep keys and values in a dict; reorder() follows the beams that go on."""

    ordered = ("k", "v")

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.cache = nn.Linear(WIDTH, 3 * WIDTH), dict[str, Tensor]()

    def step(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x[:, None]).chunk(3, -1))
        for name, new in (("k", k), ("v", v)):
            self.cache[name] = torch.cat([self.cache[name], new], 2) if name in self.cache else new
        return joined((q @ self.cache["k"].mT / 2).softmax(-1) @ self.cache["v"])[:, 0]

    def reorder(self, index: Tensor) -> None:
        for name in self.ordered:
            self.cache[name] = self.cache[name].index_select(0, index)

    def forward(self, x: Tensor) -> Tensor:
        self.cache = {}
        return torch.stack([self.step(each) for each in x.unbind(1)], 1)


class KeepsValuesBehind(KeepsByName):
    ordered = ("k",)


class KeepsNothingInOrder(KeepsByName):
    """Whoever calls it reorders what is kept."""

    ordered = ()


CASES = [
    Case("cache-beams", DecodesWithoutMasks, Decodes, of_prompts, has_line=False),
    Case("cache-beams", KeepsValuesBehind, KeepsByName, of_module, has_line=False),
    Case("cache-beams", KeepsValuesBehind, KeepsNothingInOrder, of_module, has_line=False),
]
