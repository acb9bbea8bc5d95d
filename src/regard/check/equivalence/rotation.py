"""Which channels of a head rotary positions turn together, read off what they do to a query."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["rotary_order"]

TOLERANCE = 1e-7
"""Below this an entry of the map is none."""


def rotary_order(turn: Tensor | None) -> list[int] | None:
    """The channels of a head in one order for every layout: pairs by their angle, fastest first, then the unturned.

    Args:
        turn: (width, width): what one position further makes of a query; None where it leaves it.

    Returns:
        The order; None where positions do nothing, or are no rotation of pairs of channels.
    """
    if turn is None:
        return None
    width = len(turn)
    pairs: dict[tuple[int, int], float] = {}
    beside = (turn - torch.diag(turn.diagonal())).abs()
    unturned = []
    for channel in range(width):
        partners = (beside[channel] > TOLERANCE).nonzero().flatten().tolist()
        if not partners:
            unturned.append(channel)
        elif len(partners) > 1:
            return None
        elif turn[channel, partners[0]] < 0:  # cos of its own minus sin of its partner
            angle = math.atan2(float(turn[partners[0], channel]), float(turn[channel, channel]))
            pairs[channel, partners[0]] = angle
    order = [channel for pair in sorted(pairs, key=lambda each: -pairs[each]) for channel in pair] + unturned
    return order if sorted(order) == list(range(width)) else None
