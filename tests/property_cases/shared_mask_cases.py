"""Masks of code with several attentions."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from property_cases import Case, drawn, joined, of_module, of_x, split
from regard.check.target import Invocation

FIRST, SECOND, KEYS = (drawn(8, 8, seed=seed) / 3 for seed in (70, 71, 72))
BLOCKED = -torch.inf


def attended(x: Tensor, matrix: Tensor, hidden: Tensor | None, blocked: float = BLOCKED) -> Tensor:
    scores = split(x @ matrix) @ split(x @ KEYS).mT / 2  # here
    if hidden is not None:
        scores = scores.masked_fill(hidden, blocked)
    return x + joined(scores.softmax(-1) @ split(x)) / 3


def neither_reads_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(attended(x, FIRST, None), SECOND, None)


def the_first_reads_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(attended(x, FIRST, None if mask is None else ~mask), SECOND, None)


def the_second_reads_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return attended(attended(x, FIRST, None), SECOND, None if mask is None else ~mask)


def both_read_it(x: Tensor, mask: Tensor | None = None) -> Tensor:
    hidden = None if mask is None else ~mask
    return attended(attended(x, FIRST, hidden), SECOND, hidden)


def all_that_is_kept_is_alike(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Blocked is what is not: of what is left every score is one large number."""
    return attended(attended(x, FIRST, mask, 1e9), SECOND, None)


def a_little_less_in_three_layers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """What is blocked gets a score that is lower by 1."""
    scores_less = torch.zeros(1, 1, x.shape[1]) if mask is None else -1.0 * ~mask
    for matrix in (FIRST, SECOND, FIRST + SECOND):
        x = added(x, matrix, scores_less)
    return x


def hidden_in_three_layers(x: Tensor, mask: Tensor | None = None) -> Tensor:
    scores_less = torch.zeros(1, 1, x.shape[1]) if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    for matrix in (FIRST, SECOND, FIRST + SECOND):
        x = added(x, matrix, scores_less)
    return x


def added(x: Tensor, matrix: Tensor, scores_less: Tensor) -> Tensor:
    scores = split(x @ matrix) @ split(x @ KEYS).mT / 2  # here
    return x + joined((scores + scores_less).softmax(-1) @ split(x)) / 3


class Averaged(nn.Module):
    """Two layers, and the mean of the tokens that a mask lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.layer() for _ in range(2))

    def layer(self) -> nn.Module:
        return Masked()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        for layer in self.layers:
            x = layer(x, mask)
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Masked(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = split(self.q(x)) @ split(self.k(x)).mT / 2
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        return x + joined(scores.softmax(-1) @ split(x)) / 3


class MaskedInVain(Masked):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = split(self.q(x)) @ split(self.k(x)).mT / 2
        scores.masked_fill(~mask[:, None, None], -torch.inf)  # here
        return x + joined(scores.softmax(-1) @ split(x)) / 3


class NeverMasked(Masked):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # here
        scores = split(self.q(x)) @ split(self.k(x)).mT / 2
        return x + joined(scores.softmax(-1) @ split(x)) / 3


class AveragedOfMaskedInVain(Averaged):
    def layer(self) -> nn.Module:
        return MaskedInVain()


class AveragedOfNeverMasked(Averaged):
    def layer(self) -> nn.Module:
        return NeverMasked()


def of_layers(kind: type[nn.Module]) -> Invocation:
    call = of_module(kind)
    call.masks = ["mask"]
    return call


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(FIRST)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return attended(x, self.matrix, None if mask is None else ~mask)


class Layers(nn.Module):
    """Each of two layers is given the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
            mask = self.passed_on(mask)
        return x

    def passed_on(self, mask: Tensor | None) -> Tensor | None:
        return mask


class GivenToTheFirst(Layers):
    def passed_on(self, mask: Tensor | None) -> Tensor | None:
        return None


masked = functools.partial(of_x, masks=("mask",))


class PooledSet(nn.Module):
    """Set Transformer, Lee et al. 2019: two layers, and a learned query that pools; the heads stand before the samples.

    As in its paper the queries are added in each head, and the network behind the joined heads is added to its input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = (nn.ModuleList(nn.Linear(8, 8) for _ in range(3)) for _ in range(2))
        self.network, self.asks = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in (0, 1):
            x = self.read(layer, x, x, mask)
        return self.read(2, self.asks.expand(len(x), 1, 8), x, mask)

    def read(self, layer: int, asking: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (torch.cat(each.split(4, -1)) for each in (self.q[layer](asking), self.k[layer](x)))
        scores = q @ k.mT / 2  # here
        if mask is not None:
            scores = scores.masked_fill(~self.of_each_head(mask)[:, None], -torch.inf)
        read = torch.cat((q + scores.softmax(-1) @ torch.cat(x.split(4, -1))).split(len(x)), -1)
        return read + self.network(read).relu()

    def of_each_head(self, mask: Tensor) -> Tensor:
        return torch.cat([mask, mask])


class PooledSetByOthersMasks(PooledSet):
    def of_each_head(self, mask: Tensor) -> Tensor:
        return mask.repeat_interleave(2, 0)


CASES = [
    Case("mask-argument", PooledSetByOthersMasks, PooledSet, of_layers, attentions=3),
    Case("mask-argument", GivenToTheFirst, Layers, of_layers, attentions=2),
    Case("mask-argument", neither_reads_it, the_first_reads_it, masked, attentions=2),
    Case("mask-argument", neither_reads_it, the_second_reads_it, masked, attentions=2),
    Case("mask-argument", a_little_less_in_three_layers, hidden_in_three_layers, masked, attentions=3),
    Case("mask-argument", AveragedOfMaskedInVain, Averaged, of_layers, attentions=2),
    Case("mask-argument", AveragedOfNeverMasked, Averaged, of_layers, attentions=2),
    Case("mask-argument", all_that_is_kept_is_alike, both_read_it, masked, attentions=2),
]
