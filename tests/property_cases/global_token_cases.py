"""Windows beside global tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_x, split
from regard.check.target import Invocation
from regard.check.target.preparation import prepare

TOKENS = 5


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, is_global: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1])
        near = (places[:, None] - places).abs() <= 1
        hidden = ~(near | self.open(is_global > 0))[:, None]
        scores = q @ k.mT / q.shape[-1] ** 0.5  # here
        return joined(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v)

    def open(self, marks: Tensor) -> Tensor:
        return marks[:, :, None] | marks[:, None]


class BesideGlobalTokens(Windows):
    """A token sees its neighbours; global tokens see all tokens and are seen by all."""


class BesidePairsOfThem(Windows):
    """A token sees its neighbours; global tokens see all tokens and are seen by all."""

    def open(self, marks: Tensor) -> Tensor:
        return marks[:, :, None] & marks[:, None]


class BesideTokensThatSeeAll(Windows):
    """A token sees its neighbours; global tokens see all tokens, and are not seen by all."""

    def open(self, marks: Tensor) -> Tensor:
        return marks[:, :, None].expand(-1, -1, marks.shape[1])


class AmongThemselves(Windows):
    """A token sees its neighbours; global tokens see all global ones as well."""

    def open(self, marks: Tensor) -> Tensor:
        return marks[:, :, None] & marks[:, None]


def with_marks(kind: type[nn.Module]) -> Invocation:
    """A call in which two tokens are marked."""
    module = kind()
    prepare(module, 1)
    call = of_x(module, tokens=TOKENS)
    marks = torch.zeros(2, TOKENS, dtype=torch.bool)
    marks[:, :2] = True
    return replace(call, arguments={**call.arguments, "is_global": marks}, positional=["x", "is_global"])


CASES = [
    Case("global-tokens", BesidePairsOfThem, BesideGlobalTokens, with_marks),
    Case("global-tokens", BesidePairsOfThem, BesideTokensThatSeeAll, with_marks),
    Case("global-tokens", BesidePairsOfThem, AmongThemselves, with_marks),
]
