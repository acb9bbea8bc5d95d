"""What one call of a module leaves for the next: dropout that is switched, and what a reset makes it forget."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, split

TABLE = drawn(16, WIDTH, seed=31)


class ReadsItsShare(nn.Module):
    """Attention with dropout of its weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.dropout_p = nn.Linear(WIDTH, 3 * WIDTH), dropout

    def share(self) -> float:
        return self.dropout_p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined(F.dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), self.share()) @ v)


class WritesItsShare(ReadsItsShare):
    def share(self) -> float:
        if not self.training:
            self.dropout_p = 0.0
        return self.dropout_p


class DropsAlways(ReadsItsShare):
    """Its share is 0 by default, and is dropped in eval() too where it is another."""

    def share(self) -> float:
        return self.dropout_p


class NeverDrops(DropsAlways):
    """No one can tell it to drop anything."""

    def __init__(self) -> None:
        super().__init__(0.0)


class LeavesOutConditions(ReadsItsShare):
    """What is drawn in eval() as well is told by another share, which the caller sets to 0 there."""

    def __init__(self, dropout: float = 0.0, cond_drop_prob: float = 0.0) -> None:
        super().__init__(dropout)
        self.cond_drop_prob = cond_drop_prob

    def forward(self, x: Tensor) -> Tensor:
        condition = TABLE[:1] * (torch.rand(len(x), 1, 1) >= self.cond_drop_prob)
        return super().forward(x + condition)


class TurnsItOn(ReadsItsShare):
    def __init__(self) -> None:
        super().__init__(0.2)
        self.on = False

    def share(self) -> float:
        self.on = self.on or self.training
        return self.dropout_p if self.on else 0.0


class LeavesOutLayers(nn.Module):
    """Layers are left out by Python's own random numbers, in eval() too: no call before turns that on."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.layers = ReadsItsShare(), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layer_dropout = 0.0

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        for each in self.layers:
            x = x if random.random() < self.layer_dropout else x + each(x).relu()
        return x


class Streams(nn.Module):
    """Causal attention that keeps the keys of the calls before until reset()."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.cache: Tensor | None = None
        self.place = 0

    def reset_cache(self) -> None:
        self.cache, self.place = None, 0

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        start = self.place if use_cache else 0
        given = x + TABLE[start : start + x.shape[1]]
        q, k, v = map(split, self.qkv(given).chunk(3, -1))
        if use_cache:
            both = torch.stack((k, v)) if self.cache is None else torch.cat((self.cache, torch.stack((k, v))), -2)
            self.cache, self.place = both, start + x.shape[1]
            k, v = both
        hidden = torch.ones(q.shape[-2], k.shape[-2]).triu(1 + k.shape[-2] - q.shape[-2]).bool()
        return joined((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v)


class ForgetsKeysAlone(Streams):
    def reset_cache(self) -> None:
        self.cache = None


class ForgetsTheRestApart(ForgetsKeysAlone):
    """The place is forgotten by another method."""

    def reset_state(self) -> None:
        self.place = 0


class DrawnAnew(nn.Module):
    """What reset() forgets is what was learned, and no sequence: nothing is kept of one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def reset(self) -> None:
        self.qkv.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


CASES = [
    Case("dropout-switched", DropsAlways, NeverDrops, of_module, has_line=False),
    Case("dropout-switched", DropsAlways, LeavesOutConditions, of_module, has_line=False),
    Case("dropout-switched", WritesItsShare, ReadsItsShare, of_module, has_line=False),
    Case("dropout-switched", TurnsItOn, ReadsItsShare, of_module, has_line=False),
    Case("dropout-switched", TurnsItOn, LeavesOutLayers, of_module, has_line=False),
    Case("begun-anew", ForgetsKeysAlone, Streams, of_module, has_line=False),
    Case("begun-anew", ForgetsKeysAlone, ForgetsTheRestApart, of_module, has_line=False),
    Case("begun-anew", ForgetsKeysAlone, DrawnAnew, of_module, has_line=False),
]
