"""Arguments that a call can do without by its signature, and not by what it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = q @ k.mT * scale
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def read_by_name(q: Tensor, k: Tensor, v: Tensor, *, attention_mask: Tensor | None) -> Tensor:
    return read(q, k, v, attention_mask, q.shape[-1] ** -0.5)


class Projected(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (each(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return q, k, v

    def joined(self, read: Tensor) -> Tensor:
        return self.out(read.transpose(1, 2).flatten(2))


class HandsOn(Projected):
    def forward(self, x: Tensor, **kwargs: object) -> Tensor:
        return self.joined(read(*self.split(x), scale=(x.shape[-1] // self.num_heads) ** -0.5, **kwargs))


class HandsOnByName(Projected):
    def forward(self, x: Tensor, **options: object) -> Tensor:
        return self.joined(read_by_name(*self.split(x), **options))


class HandsOnUnscaled(Projected):
    def forward(self, x: Tensor, **kwargs: object) -> Tensor:
        return self.joined(read(*self.split(x), scale=1.0, **kwargs))


def test_what_a_function_inside_lacks_is_handed_on_to_it() -> None:
    assert check(HandsOn).ok
    assert check(HandsOnByName).ok
    assert check(HandsOnUnscaled).verdict == "wrong"


class Residual(nn.Module):
    """A convolution of a map, with a projection of a vector of each sample added, as of its step."""

    def __init__(self, dim: int, temb_channels: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, dim), nn.Conv2d(dim, dim, 3, padding=1)
        self.step = nn.Linear(temb_channels, dim)

    def forward(self, x: Tensor, temb: Tensor | None) -> Tensor:
        return x + self.conv(self.norm(x)) + self.step(nn.functional.silu(temb))[:, :, None, None]


class OfAMap(Projected):
    scaled = True

    def __init__(self, in_channels: int, num_heads: int, temb_channels: int) -> None:
        super().__init__(in_channels, num_heads)
        self.residual = Residual(in_channels, temb_channels)

    def forward(self, hidden_states: Tensor, temb: Tensor | None = None) -> Tensor:
        x = self.residual(hidden_states, temb)
        batch, width, height, columns = x.shape
        q, k, v = self.split(x.flatten(2).mT)
        found = self.joined(read(q, k, v, None, q.shape[-1] ** -0.5 if self.scaled else 1.0))
        return x + found.mT.reshape(batch, width, height, columns)


class OfAMapUnscaled(OfAMap):
    scaled = False


def test_a_vector_of_each_sample_that_was_none_where_a_call_failed_is_given() -> None:
    report = check(OfAMap)
    assert report.ok, str(report)
    assert check(OfAMapUnscaled).verdict == "wrong"


class AttentionProcessor:
    """What an attention hands its projections to."""

    def __call__(self, attention: Projected, x: Tensor) -> Tensor:
        q, k, v = attention.split(x)
        return attention.joined(read(q, k, v, None, q.shape[-1] ** -0.5))


class Processed(Projected):
    def __init__(self, dim: int, num_heads: int, processor: AttentionProcessor | None = None) -> None:
        super().__init__(dim, num_heads)
        self.set(processor)

    def set(self, processor: AttentionProcessor | None) -> None:
        self.processor = processor

    def forward(self, x: Tensor) -> Tensor:
        return self.processor(self, x)


class ProcessedIfAsked(Projected):
    def __init__(self, dim: int, num_heads: int, processor: AttentionProcessor | None = None) -> None:
        super().__init__(dim, num_heads)
        self.processor = processor

    def forward(self, x: Tensor) -> Tensor:
        if self.processor is not None:
            return self.processor(self, x)
        q, k, v = self.split(x)
        return self.joined(read(q, k, v, None, 1.0))


def test_what_is_called_whether_it_is_there_or_not_is_made() -> None:
    assert check(Processed).ok
    assert check(ProcessedIfAsked).verdict == "wrong"  # by default there is none
