"""Scores that are scaled twice, exponentiated twice, or of heads whose number is their width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, of_module, split


def exponentiated_before_the_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.exp(q @ k.mT) / 2  # here
    return scores.softmax(-1) @ v


def exponentiated_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.exp(q @ k.mT / 2)
    return weights / weights.sum(-1, keepdim=True) @ v


def by_the_exponential_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each score is an exponential kernel of both, of which a softmax is taken."""
    return exponentiated_before_the_softmax(q, k, v)


class ReadsASecondSequence(nn.Module):
    """In a decoder, also keys and values of an encoder, by the same queries."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(WIDTH, 3 * WIDTH), 0.5

    def forward(self, x: Tensor, prev_k: Tensor | None = None, prev_v: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q = q * self.scale
        read = (q @ k.mT).softmax(-1) @ v
        if prev_k is not None and prev_v is not None:
            read = read + (q @ prev_k.mT).softmax(-1) @ prev_v
        return read.transpose(1, 2).flatten(2)


class ScalesThemForEach(ReadsASecondSequence):
    def forward(self, x: Tensor, prev_k: Tensor | None = None, prev_v: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        q = q * self.scale
        read = (q @ k.mT).softmax(-1) @ v
        if prev_k is not None and prev_v is not None:
            q = q * self.scale  # here
            read = read + (q @ prev_k.mT).softmax(-1) @ prev_v
        return read.transpose(1, 2).flatten(2)


class ScalesOthers(ReadsASecondSequence):
    """Each way through it scales its queries once."""

    def forward(self, x: Tensor, prev_k: Tensor | None = None, prev_v: Tensor | None = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        if prev_k is None or prev_v is None:
            q = q * self.scale
            read = (q @ k.mT).softmax(-1) @ v
        else:
            q *= self.scale
            read = (q @ prev_k.mT).softmax(-1) @ prev_v
            q = split(self.qkv(x)[..., :WIDTH])
            q = q * self.scale
            read = read + (q @ k.mT).softmax(-1) @ v
        return read.transpose(1, 2).flatten(2)


class ToldHeads(nn.Module):
    def __init__(self, dim: int = WIDTH, dim_head: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(dim, 3 * dim_head * heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each, self.num_heads) for each in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class ToldHeadsAsTheirWidth(ToldHeads):
    def __init__(self, dim: int = WIDTH, dim_head: int = 4, heads: int = 2) -> None:
        super().__init__(dim)
        self.num_heads = dim_head  # here


class ToldTheWidthAlone(ToldHeads):
    """As many heads as are left for heads so wide; their number is for others."""

    def __init__(self, dim: int = WIDTH, dim_head: int = 4, heads: int = 2) -> None:
        super().__init__(dim)
        self.num_heads = dim // dim_head


CASES = [
    Case("exponentiated-once", exponentiated_before_the_softmax, exponentiated_by_hand),
    Case("exponentiated-once", exponentiated_before_the_softmax, by_the_exponential_kernel),
    Case("scaled-once", ScalesThemForEach, ReadsASecondSequence, of_module),
    Case("scaled-once", ScalesThemForEach, ScalesOthers, of_module),
    Case("heads-as-told", ToldHeadsAsTheirWidth, ToldHeads, of_module),
    Case("heads-as-told", ToldHeadsAsTheirWidth, ToldTheWidthAlone, of_module),
]
