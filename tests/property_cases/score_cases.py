"""The scale of scores, and what is added to them."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import WIDTH, Case, drawn, joined, of_x, split

REGISTER = drawn(1, 1, WIDTH, seed=9)
DISTANCE = (torch.arange(3)[:, None] - torch.arange(3)).double()
LATER = DISTANCE < 0
SLOPES = torch.tensor([0.5, 0.25]).double()[:, None, None]


def divided_by_the_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1]  # here
    return scores.softmax(-1) @ v


def divided_by_its_root(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v


def capped_then_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    capped = 5 * torch.tanh(scores / 5) / 2  # here
    return capped.softmax(-1) @ v


def scaled_then_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return (5 * torch.tanh(scores / 5)).softmax(-1) @ v


def capped_to_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    return torch.tanh(scores / 5).softmax(-1) @ v  # here


def one_number_for_all_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + SLOPES  # here
    return scores.softmax(-1) @ v


def by_the_sum_of_positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    table = SLOPES * (torch.arange(3)[:, None] + torch.arange(3)).double() ** 2
    return (q @ k.mT / 2 + table).softmax(-1) @ v  # here


def by_the_square_of_the_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2 + SLOPES * DISTANCE**2).softmax(-1) @ v


def scaled_with_the_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT + SLOPES * DISTANCE**2  # here
    return (scores / 2).softmax(-1) @ v


def far_keys_favored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 + SLOPES * DISTANCE
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v  # here


def one_slope_for_all_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 - SLOPES[:1] * DISTANCE
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v  # here


def near_keys_favored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2 - SLOPES * DISTANCE
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v


def with_slopes(x: Tensor, slopes: list[float]) -> Tensor:
    distance = torch.arange(4)[:, None] - torch.arange(4)
    bias = -torch.tensor(slopes, dtype=x.dtype)[:, None, None] * distance
    heads = split(x, len(slopes))
    scores = heads @ heads.mT / 2**0.5 + bias
    return joined(scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ heads)  # here


def slopes_from_the_heads_inverse(x: Tensor) -> Tensor:
    return with_slopes(x, [2 ** (-8 / head) for head in (1, 2, 3, 4)])


def slopes_of_a_geometric_sequence(x: Tensor) -> Tensor:
    return with_slopes(x, [2 ** (-8 * head / 4) for head in (1, 2, 3, 4)])


def by_the_distance_of_later_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.where(LATER, -DISTANCE * SLOPES, SLOPES)
    scores = q @ k.mT / 2 + bias  # here
    return scores.masked_fill(LATER, -torch.inf).softmax(-1) @ v


def with_a_register(x: Tensor, scale: float) -> Tensor:
    """A learned token stands before the others: a sink of theirs."""
    tokens = torch.cat([REGISTER.expand(len(x), -1, -1), x], 1)
    q, k, v = (0.2 * tokens @ drawn(WIDTH, WIDTH, seed=seed) for seed in range(3))
    return ((q @ k.mT * scale).softmax(-1) @ v)[:, 1:]  # here


def times_the_root_beside_a_register(x: Tensor) -> Tensor:
    return with_a_register(x, WIDTH**0.5)


def divided_by_the_root_beside_a_register(x: Tensor) -> Tensor:
    return with_a_register(x, WIDTH**-0.5)


CASES = [
    Case("scale", times_the_root_beside_a_register, divided_by_the_root_beside_a_register, of_x),
    Case("scale", divided_by_the_width, divided_by_its_root),
    Case("softcap-of-scaled", capped_then_scaled, scaled_then_capped),
    Case("softcap-restored", capped_to_one, scaled_then_capped),
    Case("bias-by-key", one_number_for_all_keys, divided_by_its_root),
    Case("bias-by-key", by_the_distance_of_later_keys, near_keys_favored),
    Case("bias-by-distance", by_the_sum_of_positions, by_the_square_of_the_distance),
    Case("bias-after-scale", scaled_with_the_bias, by_the_square_of_the_distance),
    Case("alibi-sign", far_keys_favored, near_keys_favored),
    Case("alibi-slopes", one_slope_for_all_heads, near_keys_favored),
    Case("alibi-slopes", slopes_from_the_heads_inverse, slopes_of_a_geometric_sequence, of_x),
]
