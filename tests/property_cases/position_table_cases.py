"""Tables of positions that are added to tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn, joined, of_module, of_x, split

PLACES = drawn(16, WIDTH, seed=20)
"""(positions, width)."""
LATER = torch.ones(16, 16).triu(1) == 1


class WithoutItsTable(nn.Module):
    """A table that is made for later, and never added."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sinusoids", PLACES)

    def forward(self, x: Tensor) -> Tensor:
        return attended(x)


class WithItsTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position_table", PLACES)

    def forward(self, x: Tensor) -> Tensor:
        return attended(x + self.position_table[: x.shape[1]])


def attended(x: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / WIDTH**0.5)) for seed in (1, 2, 3))
    scores = q @ k.mT / 2  # here
    count = x.shape[1]
    return joined((scores.masked_fill(LATER[:count, :count], -torch.inf) if causal else scores).softmax(-1) @ v)


def added_once(x: Tensor) -> Tensor:
    return attended(x + PLACES[: x.shape[1]])


def added_twice(x: Tensor) -> Tensor:
    x = x + PLACES[: x.shape[1]]
    x = x + PLACES[: x.shape[1]]  # here
    return attended(x)


def added_to_what_is_read(x: Tensor) -> Tensor:
    positions = PLACES[: x.shape[1]]
    return attended(x) + positions  # here


def last_rows(x: Tensor) -> Tensor:
    return attended(x + PLACES[-x.shape[1] :], causal=True)


def first_rows(x: Tensor) -> Tensor:
    return attended(x + PLACES[: x.shape[1]], causal=True)


CASES = [
    Case("positions-without-effect", WithoutItsTable, WithItsTable, of_module, has_line=False),
    Case("positions-once", added_twice, added_once, of_x),
    Case("positions-without-effect", added_to_what_is_read, added_once, of_x),
    Case("positions-from-the-start", last_rows, first_rows, of_x),
]
