"""Keys that are read a chunk at a time, in code whose chunks make no whole of the tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from property_cases import Case, drawn, joined, of_x, split
from regard.check.target import Invocation

QUERIES, KEYS, VALUES = (drawn(8, 8, seed=seed) / 3 for seed in (95, 96, 97))
CHUNK = 2


def _read(x: Tensor, chunks: Iterable[slice]) -> Tensor:
    q, k, v = (split(x @ each) for each in (QUERIES, KEYS, VALUES))
    parts, sums = [], []
    for chunk in chunks:
        scores = q @ k[:, :, chunk].mT / 2  # here
        parts.append(scores.softmax(-1) @ v[:, :, chunk])
        sums.append(scores.logsumexp(-1))
    shares = torch.stack(sums).softmax(0)[..., None]
    return joined((shares * torch.stack(parts)).sum(0))


def whole_chunks(x: Tensor) -> Tensor:
    return _read(x, [slice(CHUNK * each, CHUNK * (each + 1)) for each in range(x.shape[1] // CHUNK)])


def all_chunks(x: Tensor) -> Tensor:
    return _read(x, [slice(start, start + CHUNK) for start in range(0, x.shape[1], CHUNK)])


def of_known_tokens(x: Tensor) -> Tensor:
    """All rows read those whose answers are known: all but the last."""
    q, k, v = (split(x @ each) for each in (QUERIES, KEYS, VALUES))
    return joined((q @ k[:, :, :-1].mT / 2).softmax(-1) @ v[:, :, :-1])


def of_five(function: Any) -> Invocation:
    """A call of five tokens."""
    return of_x(function, tokens=5)


CASES = [Case("keys-seen", whole_chunks, right, of_five) for right in (all_chunks, of_known_tokens)]
