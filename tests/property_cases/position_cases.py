"""Rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import Case, drawn

ANGLES = torch.arange(3.0).double()[:, None] * torch.tensor([1.0, 0.1]).double().repeat(2)
"""(tokens, width)."""


def half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


def rotated(x: Tensor, angles: Tensor = ANGLES) -> Tensor:
    return x * angles.cos() + half_turned(x) * angles.sin()


def values_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = rotated(q), rotated(k), rotated(v)
    scores = q @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def queries_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def keys_rotated_the_other_way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ rotated(k, -ANGLES).mT / 2  # here
    return scores.softmax(-1) @ v


def stretched(x: Tensor) -> Tensor:
    return x * ANGLES.cos() + x * ANGLES.sin()


def queries_and_keys_stretched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = stretched(q) @ stretched(k).mT / 2  # here
    return scores.softmax(-1) @ v


def rotated_by_the_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    angles = ANGLES[: q.shape[1], None] + 1
    scores = rotated(q, angles) @ rotated(k, angles).mT / 2  # here
    return scores.softmax(-1) @ v


def rotary(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = rotated(q) @ rotated(k).mT / 2
    return scores.softmax(-1) @ v


def in_two_parts(q: Tensor, k: Tensor, v: Tensor, angles_of_keys: Tensor) -> Tensor:
    """Half of the width is rotated, as in multi-head latent attention."""
    near, far = q.chunk(2, -1)
    keys, turned = k.chunk(2, -1)
    products = near @ keys.mT + rotated(far, ANGLES[:, ::2]) @ rotated(turned, angles_of_keys).mT
    scores = products / 2  # here
    return scores.softmax(-1) @ v


def queries_of_a_part_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return in_two_parts(q, k, v, 0 * ANGLES[:1, ::2])


def a_part_rotated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return in_two_parts(q, k, v, ANGLES[:, ::2])


def turned_by_no_angle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = rotated(q, ANGLES[:1])  # here
    scores = q @ rotated(k, ANGLES[:1]).mT / 2
    return scores.softmax(-1) @ v


def parts_of_keys_exchanged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = torch.cat((k[..., 2:], rotated(k[..., :2], ANGLES[:, ::2])), -1)
    scores = torch.cat((rotated(q[..., :2], ANGLES[:, ::2]), q[..., 2:]), -1) @ k.mT / 2  # here
    return scores.softmax(-1) @ v


def parts_in_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (torch.cat((rotated(each[..., :2], ANGLES[:, ::2]), each[..., 2:]), -1) for each in (q, k))
    return (q @ k.mT / 2).softmax(-1) @ v


LEARNED = drawn(5, 4, seed=9)
"""One vector for each distance of three tokens."""


def distances_by_the_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = q @ LEARNED[:3].T  # here
    return ((q @ k.mT + logits) / 2).softmax(-1) @ v


def keys_that_know_their_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As if each place's vector were added to its key."""
    rows, columns = drawn(3, 1, 4, seed=9), drawn(1, 2, 4, seed=8)
    of_places = (rows + columns).flatten(0, 1)[: k.shape[-2]]
    return ((q @ k.mT + torch.einsum("bhid,jd->bhij", q, of_places)) / 2).softmax(-1) @ v


CASES = [
    Case("positions-relative", parts_of_keys_exchanged, parts_in_order),
    Case("values-without-positions", values_rotated, rotary),
    Case("positions-relative", queries_rotated, rotary),
    Case("positions-relative", keys_rotated_the_other_way, rotary),
    Case("positions-relative", distances_by_the_key, keys_that_know_their_place),
    Case("rotation-keeps-lengths", queries_and_keys_stretched, rotary),
    Case("positions-relative", queries_of_a_part_rotated, a_part_rotated, has_line=False),
    Case("positions-without-effect", turned_by_no_angle, rotary, has_line=False),
    Case("positions-by-token", rotated_by_the_head, rotary),
]
