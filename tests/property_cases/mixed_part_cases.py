"""Weights that are a part softmax of scores, and a part softmax of distances, beside a mask of padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from property_cases import Case, drawn, of_x
from regard.check.target import Invocation

DISTANCES = drawn(2, 4, 4, seed=14).abs()
ADJACENT = (drawn(2, 4, 4, seed=15) > 0).double()


def of_x_and_distances(function: Any) -> Invocation:
    call = of_x(function, masks=("mask",))
    call.arguments["distances"], call.arguments["adjacency"] = DISTANCES, ADJACENT
    return call


def mixed(x: Tensor, near: Tensor, adjacency: Tensor, mask: Tensor | None) -> Tensor:
    scores = x @ x.mT / x.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    weights: Tensor = 0.5 * scores.softmax(-1) + 0.25 * near + 0.25 * adjacency
    return weights @ x


def masked_apart(
    x: Tensor, mask: Tensor | None = None, *, distances: Tensor = DISTANCES, adjacency: Tensor = ADJACENT
) -> Tensor:
    near = (-distances).softmax(-1)  # here
    return mixed(x, near, adjacency, mask)


def masked_in_both(
    x: Tensor, mask: Tensor | None = None, *, distances: Tensor = DISTANCES, adjacency: Tensor = ADJACENT
) -> Tensor:
    distances = distances if mask is None else distances.masked_fill(~mask[:, None], torch.inf)
    return mixed(x, (-distances).softmax(-1), adjacency, mask)


def masked_behind(
    x: Tensor, mask: Tensor | None = None, *, distances: Tensor = DISTANCES, adjacency: Tensor = ADJACENT
) -> Tensor:
    """Hidden keys have no share of the distances, whatever their softmax was."""
    near = (-distances).softmax(-1)
    near = near if mask is None else near * mask[:, None]
    return mixed(x, near, adjacency, mask)


CASES = [
    Case("mask-of-all-parts", masked_apart, right, of_x_and_distances) for right in (masked_in_both, masked_behind)
]
