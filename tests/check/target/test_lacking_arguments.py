"""Arguments that a call can do without by its signature, and not by what it does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.check import check


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


class Shifts(nn.Module):
    """Adds a projection of a vector of each sample, as of its step, before anything is read."""

    def __init__(self, dim: int, time_dim: int) -> None:
        super().__init__()
        self.norm, self.step = nn.LayerNorm(dim), nn.Linear(time_dim, dim)

    def forward(self, x: Tensor, temb: Tensor | None) -> Tensor:
        return self.norm(x) + self.step(nn.functional.silu(temb))[:, None]


class Conditioned(Projected):
    scaled = True

    def __init__(self, dim: int, num_heads: int, time_dim: int) -> None:
        super().__init__(dim, num_heads)
        self.shifts = Shifts(dim, time_dim)

    def forward(self, x: Tensor, temb: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.shifts(x, temb))
        return self.joined(read(q, k, v, None, q.shape[-1] ** -0.5 if self.scaled else 1.0))


class ConditionedUnscaled(Conditioned):
    scaled = False


def test_a_vector_of_each_sample_that_was_none_where_a_call_failed_is_given() -> None:
    assert check(Conditioned).verdict != "undetermined"
    assert check(Conditioned).ok
    assert check(ConditionedUnscaled).verdict == "wrong"
