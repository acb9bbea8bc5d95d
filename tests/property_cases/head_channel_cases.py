"""Which channels of their projections heads take, and what queries, keys and values are projected from."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import HEADS, WIDTH, Case, joined, of_module, split


def strided(x: Tensor) -> Tensor:
    """Heads that each take every second channel."""
    return x.unflatten(-1, (-1, HEADS)).permute(0, 3, 1, 2)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q(x)), split(self.k(x)), split(self.v(x))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # here
        return self.o(joined(weights @ v))


class KeysStrided(Heads):
    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q(x)), strided(self.k(x)), split(self.v(x))


class PairedNumbers(Heads):
    """Queries and keys are of one projection, in which their numbers alternate; heads are in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(WIDTH, 2 * WIDTH)
        del self.q, self.k

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k = self.qk(x).unflatten(-1, (HEADS, -1, 2)).transpose(1, 2).unbind(-1)
        return q, k, split(self.v(x))


class PairedNumbersStrided(PairedNumbers):
    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().parts(x)
        return q, k, strided(self.v(x))


class AllStrided(Heads):
    """Heads are joined in another order than they are split in, by one rule for all three."""

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return strided(self.q(x)), strided(self.k(x)), strided(self.v(x))


class KeysOfOtherHeads(Heads):
    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q(x)), split(self.k(x)).flip(1), split(self.v(x))


class JoinedBackwards(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o(joined((weights @ v).flip(1)))


class ShuffledHeads(JoinedBackwards):
    """What heads read is shuffled before it is joined."""


class ValuesOfKeys(Heads):
    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, x = self.q(x), self.k(x)
        return split(q), split(x), split(self.v(x))


class ValuesOfProjectedKeys(ValuesOfKeys):
    """A Hopfield layer: values are made of the projected keys."""


class KeysOfQueries(Heads):
    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x)
        return split(q), split(self.k(q)), split(self.v(x))


class LowRankQueries(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.down(x)
        return split(self.q(c)), split(self.k(c)), split(self.v(c))


class LayerBefore(LowRankQueries):
    """What a layer made of the tokens is read as it is."""

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.down(x))
        return split(self.q(h)), split(self.k(h)), split(self.v(x) + h)


class CosineScores(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.qk_scale = 8.0

    def times(self, q: Tensor) -> float:
        return float(q.shape[-1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        weights = (q @ k.mT * self.times(q)).softmax(-1)  # here
        return self.o(joined(weights @ v))


class ReadsItsScale(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.qk_scale = 8.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return self.o(joined((q @ k.mT * self.qk_scale).softmax(-1) @ v))


class Gated(Heads):
    """The output is sigmoid(W_g x) times what the heads read."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Linear(WIDTH, WIDTH)

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        return self.g(x)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        y = joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return self.o(torch.sigmoid(self.gate(x, y)) * y)  # here


class GatedByItself(Gated):
    """The output is sigmoid(W_g x) times what the heads read."""

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        return self.g(y)


class GatedWithoutAPromise(GatedByItself):
    """What the heads read is gated by itself."""


class PromisesAGateOfTheInput(GatedByItself):
    """What the heads read is multiplied by a gate that is computed from the input."""


class SetAttention(Heads):
    """What a head reads is added to its query, and scores are over the root of the whole width."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        y = joined(q + (q @ k.mT / WIDTH**0.5).softmax(-1) @ v)
        return y + torch.relu(self.o(y))


class WholeWidth(SetAttention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        weights = (q @ k.mT / WIDTH**0.5).softmax(-1)  # here
        y = x + joined(weights @ v)
        return y + torch.relu(self.o(y))


CASES = [
    Case("heads-split-alike", KeysStrided, Heads, of_module),
    Case("heads-split-alike", KeysOfOtherHeads, AllStrided, of_module),
    Case("heads-split-alike", PairedNumbersStrided, PairedNumbers, of_module, has_line=False),
    Case("heads-joined-in-order", JoinedBackwards, ShuffledHeads, of_module, has_line=False),
    Case("projected-from-the-input", ValuesOfKeys, ValuesOfProjectedKeys, of_module, has_line=False),
    Case("projected-from-the-input", KeysOfQueries, LowRankQueries, of_module, has_line=False),
    Case("projected-from-the-input", KeysOfQueries, LayerBefore, of_module, has_line=False),
    Case("scale", CosineScores, ReadsItsScale, of_module),
    Case("scale", WholeWidth, SetAttention, of_module),
    Case("gate-as-documented", GatedByItself, Gated, of_module, has_line=False),
    Case("gate-as-documented", PromisesAGateOfTheInput, GatedWithoutAPromise, of_module, has_line=False),
]
