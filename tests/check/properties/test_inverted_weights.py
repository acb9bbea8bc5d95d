"""Nystrom attention, whose landmarks' weights are inverted by products with themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, drawn, joined, of_x, split
from regard.check.properties.analyze import analyze

W_Q, W_K, W_V = (drawn(WIDTH, WIDTH, seed=each) / 3 for each in range(60, 63))
MARKS = 2


def inverse(a: Tensor) -> Tensor:
    """Newton's steps towards it."""
    found = a.mT / a.sum(-2).amax()
    for _ in range(3):
        found = found @ (2 * torch.eye(a.shape[-1], dtype=a.dtype) - a @ found)
    return found


def by_landmarks(x: Tensor) -> Tensor:
    q, k, v = (split(x @ each) for each in (W_Q, W_K, W_V))
    of_q, of_k = (each.unflatten(2, (MARKS, -1)).mean(3) for each in (q, k))
    first, middle, last = ((a @ b.mT / 2).softmax(-1) for a, b in ((q, of_k), (of_q, of_k), (of_q, k)))
    return joined(first @ inverse(middle) @ (last @ v))


def test_an_inverse_of_weights_is_no_attention_whose_keys_are_mixed() -> None:
    found = analyze(of_x(by_landmarks, tokens=8))
    assert not found.violations
    assert {each.property for each in found.designs} >= {"summarized-keys"}
