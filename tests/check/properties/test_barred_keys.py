"""Causal masks that bar keys at even distances: of few tokens, the mask that the module keeps tells it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

PLACES = 12


class Trajectories(nn.Module):
    """Attention over states, actions and estimated values in turn, whose mask is made once and cut."""

    def __init__(self, d_model: int = 16, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.register_buffer("mask", self.made())

    def made(self) -> Tensor:
        """1 where a query sees a key."""
        mask = torch.ones(PLACES, PLACES).tril()
        mask[:, 4::5] = 0
        return mask

    def hidden(self, count: int) -> Tensor:
        """True where a query sees no key."""
        return self.mask[:count, :count] == 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(self.hidden(x.shape[1]), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TrueIsHidden(Trajectories):
    """The mask says who is hidden, and has axes for samples and heads."""

    def made(self) -> Tensor:
        """1 where a query sees no key."""
        return 1 - super().made()[None, None]

    def hidden(self, count: int) -> Tensor:
        """True where a query sees no key."""
        return self.mask[:, :, :count, :count].bool()


class MadeInTheCall(Trajectories):
    """The mask is made for the tokens there are: each second key is barred."""

    def hidden(self, count: int) -> Tensor:
        """True where a query sees no key."""
        places = torch.arange(count)
        return (places[None] > places[:, None]) | (places[None] % 2 == 1)


class OneKey(Trajectories):
    """One key alone is barred: of five tokens, the last."""

    def made(self) -> Tensor:
        """1 where a query sees a key."""
        mask = torch.ones(PLACES, PLACES).tril()
        mask[:, 4] = 0
        return mask


class OneKeyTooFew(Trajectories):
    """No query but the first sees its own token."""

    def made(self) -> Tensor:
        """1 where a query sees a key."""
        mask = torch.ones(PLACES, PLACES).tril(-1)
        mask[0, 0] = 1
        return mask


@pytest.mark.parametrize("kind", [Trajectories, TrueIsHidden, MadeInTheCall])
def test_keys_that_are_barred_at_even_distances_are_a_design(kind: Any) -> None:
    assert check(kind).verdict == "different by design"


@pytest.mark.parametrize("kind", [OneKey, OneKeyTooFew])
def test_other_keys_that_are_not_seen_are_wrong(kind: Any) -> None:
    assert check(kind).verdict == "wrong"
