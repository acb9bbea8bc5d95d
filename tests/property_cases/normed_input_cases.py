"""Norms around a sublayer of two sequences, and the residual behind the norm of a post-norm block."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, joined, of_module, of_x_and_context, split
from regard.check.target import Invocation


class Asks(nn.Module):
    """Attention to another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = map(split, (self.w_q(x), *self.w_kv(context).chunk(2, -1)))
        return joined((q @ k.mT / 2).softmax(-1) @ v)


class NormsAll(nn.Module):
    """A norm before a layer: all inputs are normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), Asks()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.layer(self.norm(x), self.norm(context))


class NormsTheFirst(NormsAll):
    """A norm before a layer: all inputs are normalized."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.layer(self.norm(x), context)


class NormsTheFirstAsItSays(NormsTheFirst):
    """A norm before a layer, of what asks."""


class Around(nn.Module):
    """The residual around it."""

    kind: type[NormsAll] = NormsAll

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.kind()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return x + self.inner(x, context)


class AroundTheFirst(Around):
    kind = NormsTheFirst


class AroundTheFirstAsItSays(Around):
    kind = NormsTheFirstAsItSays


class NormsTheFirstInOtherWords(NormsTheFirst):
    """A norm before a layer: every one of the inputs is normalised first."""


class NormsTheFirstOfAll(NormsTheFirst):
    """A norm before a layer: of all the inputs, the first is normalised."""


class AroundTheFirstInOtherWords(Around):
    kind = NormsTheFirstInOtherWords


class AroundTheFirstOfAll(Around):
    kind = NormsTheFirstOfAll


class BehindTheNorm(nn.Module):
    """A layer with post-norm: LayerNorm(x + Sublayer(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        y = x + joined((q @ k.mT / 2).softmax(-1) @ v)
        z = self.norm1(y)
        return self.norm2(self.residual(y, z) + self.down(F.relu(self.up(z))))  # here

    def residual(self, y: Tensor, z: Tensor) -> Tensor:
        return z


class PastTheNorm(BehindTheNorm):
    """A layer with post-norm: LayerNorm(x + Sublayer(x))."""

    def residual(self, y: Tensor, z: Tensor) -> Tensor:
        return y


class PastTheNormByDesign(PastTheNorm):
    """A layer whose feed-forward network alone has norms, before it and behind the sum."""


def of_two(kind: Any) -> Invocation:
    """A call of a module with a sequence and another one."""
    return of_x_and_context(of_module(kind).target)


CASES = [
    Case("norm-used", AroundTheFirst, Around, of_two, has_line=False),
    Case("norm-used", AroundTheFirst, AroundTheFirstAsItSays, of_two, has_line=False),
    Case("norm-used", AroundTheFirstInOtherWords, Around, of_two, has_line=False),
    Case("norm-used", AroundTheFirstInOtherWords, AroundTheFirstOfAll, of_two, has_line=False),
    Case("residual-behind-norm", PastTheNorm, BehindTheNorm, of_module),
    Case("residual-behind-norm", PastTheNorm, PastTheNormByDesign, of_module),
]
