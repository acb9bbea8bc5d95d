"""Weights of places that are to multiply the exponentials of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case, drawn

PLACES = drawn(3, 3, seed=11).relu()


def by_logarithms(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + torch.log(PLACES.clamp(min=1e-6))).softmax(-1) @ v


def by_themselves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + PLACES.clamp(min=1e-6)  # here
    return scores.softmax(-1) @ v


def as_a_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nothing below zero is added, on purpose."""
    return (q @ k.mT / 2 + PLACES.clamp(min=0.0)).softmax(-1) @ v


def divided_by_them(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The least number is for a quotient."""
    least = PLACES.sum(-1, keepdim=True).clamp(min=1e-6)
    return (q @ k.mT / 2 + PLACES / least).softmax(-1) @ v


CASES = [
    Case("bias-of-logarithms", by_themselves, by_logarithms),
    Case("bias-of-logarithms", by_themselves, as_a_bias),
    Case("bias-of-logarithms", by_themselves, divided_by_them),
]
