"""Scores that are blocked, and have a weight all the same."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case
from property_cases.mask_cases import EARLIER, hides_what_comes_later


def _by_full_like(q: Tensor, k: Tensor, v: Tensor, lowest: float) -> Tensor:
    scores = q @ k.mT / 2  # here
    return torch.where(EARLIER, scores, torch.full_like(scores, lowest)).softmax(-1) @ v


def fills_like_the_scores_with_zeros(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _by_full_like(q, k, v, 0.0)


def fills_like_the_scores_from_far_below(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What is made like the scores is none of them: no score was blocked that has a weight."""
    return _by_full_like(q, k, v, -2.3819763e38)


def blocked_by_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2  # here
    return scores.masked_fill(~EARLIER, 0.0).softmax(-1) @ v


def _written(q: Tensor, k: Tensor, v: Tensor, elsewhere: float) -> Tensor:
    """Scores of a token with itself and the one before it."""
    scores = torch.full((*q.shape[:-1], k.shape[-2]), elsewhere, dtype=q.dtype)
    for back in range(2):
        row = torch.arange(back, q.shape[-2])
        scores[..., row, row - back] = (q[..., row, :] * k[..., row - back, :]).sum(-1) / 2
    return scores.softmax(-1) @ v  # here


def writes_scores_between_zeros(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _written(q, k, v, 0.0)


def writes_scores_between_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _written(q, k, v, -torch.inf)


def multiplied_by_the_fill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.full((q.shape[-2], k.shape[-2]), -1e6, dtype=q.dtype)
    seen[EARLIER] = 1
    scores = q @ k.mT / 2 * 1.0
    scores = scores * seen  # here
    return torch.softmax(scores, dim=-1) @ v


def added_to_the_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.full((q.shape[-2], k.shape[-2]), -1e6, dtype=q.dtype)
    hidden[EARLIER] = 1
    scores = q @ k.mT / 2 + torch.where(hidden == 1, 0.0, hidden)
    return torch.softmax(scores, dim=-1) @ v


def scaled_when_they_are_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = torch.tensor(0.5, dtype=q.dtype)
    products = torch.full((*q.shape[:-1], k.shape[-2]), -1e6, dtype=q.dtype)
    products[..., EARLIER] = (q @ k.mT)[..., EARLIER]
    scores = products * scale
    return torch.softmax(scores, dim=-1) @ v


def far_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of tokens that are far apart are as low as blocked ones by themselves, until they are divided."""
    lengths = [each.square().sum(-1) for each in (q, k)]
    distances = lengths[0][..., None] + lengths[1][..., None, :] - 2 * q @ k.mT
    return (-1e4 * distances / 4e4).softmax(-1) @ v


CASES = [
    Case("blocked-scores", multiplied_by_the_fill, added_to_the_scores),
    Case("blocked-scores", multiplied_by_the_fill, far_apart),
    Case("blocked-scores", multiplied_by_the_fill, scaled_when_they_are_written),
    Case("blocked-scores", blocked_by_zero, hides_what_comes_later),
    Case("blocked-scores", fills_like_the_scores_with_zeros, fills_like_the_scores_from_far_below),
    Case("blocked-scores", writes_scores_between_zeros, writes_scores_between_infinities),
]
