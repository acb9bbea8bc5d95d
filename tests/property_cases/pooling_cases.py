"""Attentive pooling: weighted means and deviations of the tokens, channel by channel."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, of_x


def weights_of(x: Tensor) -> Tensor:
    """(batch, tokens, width): over the tokens."""
    return (torch.tanh(x @ drawn(WIDTH, 5, seed=1)) @ drawn(5, WIDTH, seed=2)).softmax(1)


def less_the_plain_mean(x: Tensor) -> Tensor:
    weights = weights_of(x)
    mean = (weights * x).sum(1)
    variance = (weights * x**2).sum(1) - x.mean(1) ** 2  # here
    return torch.cat((mean, variance.clamp(min=1e-6).sqrt()), -1)


def less_the_weighted_mean(x: Tensor) -> Tensor:
    weights = weights_of(x)
    mean = (weights * x).sum(1)
    variance = (weights * x**2).sum(1) - mean * mean
    return torch.cat((mean, variance.clamp(min=1e-6).sqrt()), -1)


def mean_of_the_weighted(x: Tensor) -> Tensor:
    """One weight for each token."""
    weights = (torch.tanh(x @ drawn(WIDTH, 5, seed=1)) @ drawn(5, 1, seed=2)).softmax(1)
    return (weights * x).mean(1)  # here


def sum_of_the_weighted(x: Tensor) -> Tensor:
    weights = (torch.tanh(x @ drawn(WIDTH, 5, seed=1)) @ drawn(5, 1, seed=2)).softmax(1)
    return (weights * x).sum(1)


CASES = [
    Case("variance-of-the-weights", less_the_plain_mean, less_the_weighted_mean, of_x, attentions=2),
    Case("weights-kept", mean_of_the_weighted, sum_of_the_weighted, of_x),
]
