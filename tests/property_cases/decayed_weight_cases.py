"""Rotary positions that reach no score, and weights that fall with the distance instead."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_x, split

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=each) / 3 for each in range(80, 83))


def places(x: Tensor) -> tuple[Tensor, Tensor]:
    at = torch.arange(x.shape[1], dtype=x.dtype)
    return at, at[:, None] - at


def fading(x: Tensor) -> Tensor:
    """Retention without rotary positions: what is far counts for less."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    _, distance = places(x)
    return joined((q @ k.mT * 0.8 ** distance.abs() * (distance >= 0)) @ v)


def turned_values(x: Tensor) -> Tensor:
    """Attention with rotary positions."""
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    angles = places(x)[0][:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
    one, other = v.chunk(2, -1)
    v = v * angles.cos() + torch.cat([-other, one], -1) * angles.sin()  # here
    return joined((q @ k.mT / 2).softmax(-1) @ v)


CASES = [Case("positions-without-effect", turned_values, fading, of_x)]
