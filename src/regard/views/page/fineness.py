"""How finely a page keeps queries, keys and values: so that its weights stay near the exact ones, and no finer."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

import numpy as np
import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.map import AttentionMap
from regard.views.page.codec import LARGEST, planes, shorts

__all__ = ["BOUNDS", "COARSEST", "Fineness"]

BOUNDS = (1e-5, 1e-4, 9.5e-4)
"""How far a weight that the page computes may be from the exact one, in a small page first; the last is the most."""

COARSEST = BOUNDS[-1]

VALUES = dict(zip(BOUNDS, (2000.0, 250.0, 24.0), strict=True))
"""For each bound, into how many steps a standard deviation of the values is cut."""

HELD = 2**18
"""So many weights of each head are held against the page's."""

MARGIN = 0.97
"""Twice the step is twice as far off, but for luck with rounding."""

COUNTED = 2**12
"""So many rows of an array tell how well it packs."""


class Fineness:
    """How finely the queries, keys and values of one attention are kept, for some bound.

    Each key head has one step, for its keys and for the queries that look at them.

    Args:
        m: a map of one batch row.
    """

    def __init__(self, m: AttentionMap) -> None:
        self.m = m
        self.group = m.shape[1] // m.k.shape[1]
        self.q, self.k = (t[0].to(torch.promote_types(t.dtype, torch.float32)) for t in (m.q, m.k))
        self._every = ceil(m.shape[2] * m.shape[3] / HELD)
        self._weights: Tensor | None = None
        largest = torch.maximum(self.q.abs().amax((1, 2)).reshape(-1, self.group).amax(1), self.k.abs().amax((1, 2)))
        self._largest = largest.clamp_min(1e-9).double().cpu()
        self._steps: dict[float, Tensor] = {}
        self._within: dict[float, float] = {}

    def steps(self, bound: float) -> Float[Tensor, " kv_heads"]:
        """What queries and keys are multiples of, for each key head."""
        if bound not in self._steps:
            if not self._steps:
                first = self._largest / 2**10
                # A head that cannot be off, since it looks at one key alone, is kept as finely as one that is a little.
                self._steps[COARSEST] = first * (MARGIN * COARSEST / self.off(first).clamp_min(COARSEST / 16))
            self._steps[bound] = torch.maximum(self._steps[COARSEST] * (bound / COARSEST), self._largest / LARGEST)
        return self._steps[bound]

    def settle(self, bound: float) -> float:
        """Hold the weights of the page against the exact ones, and keep heads that are too far off more finely.

        Returns:
            The largest difference that is left.
        """
        while bound not in self._within:
            steps = self.steps(bound)
            off = self.off(steps)
            finer = torch.maximum(steps * (MARGIN * bound / off), self._largest / LARGEST)
            too_far = (off > bound) & (finer < steps)
            self._steps[bound] = torch.where(too_far, finer, steps)
            if not bool(too_far.any()):
                self._within[bound] = float(off.max())
        return self._within[bound]

    def off(self, steps: Float[Tensor, " kv_heads"]) -> Float[Tensor, " kv_heads"]:
        """The largest difference between a weight and what it is with multiples of these steps.

        Of small changes of the scores, d: weight * (d - the row's mean d under its weights). A soft-cap makes changes
        smaller, and a bias and a mask leave them as they are.
        """
        if self._weights is None:
            self._weights = self.m[0, :, :: self._every].to(self.q.dtype)
        q, k = self.q[:, :: self._every], self.k
        k_steps, q_steps = steps.to(q)[:, None, None], steps.repeat_interleave(self.group).to(q)[:, None, None]
        kept = (k / k_steps).round() * k_steps
        q_change, k_change = (q / q_steps).round() * q_steps - q, kept - k
        change = self._scores(q_change, kept) + self._scores(q, k_change)
        change -= (self._weights * change).sum(-1, keepdim=True)
        off = (self._weights * change).abs().amax((1, 2)) * abs(self.m.scale)
        largest: Tensor = off.reshape(-1, self.group).amax(1)
        return largest.double().cpu()

    def norms(self, bound: float) -> Float[Tensor, "heads queries"]:
        """The logarithm of each row's sum of exponentials, with the sink, of what is kept; 0 where there is nothing."""
        m, steps = self.m, self.steps(bound)
        q, k = (
            (t / step).round() * step
            for t, step in (
                (self.q, steps.repeat_interleave(self.group).to(self.q)[:, None, None]),
                (self.k, steps.to(self.k)[:, None, None]),
            )
        )
        kept = AttentionMap(q[None], k[None], mask=m.mask, scale=m.scale, bias=m.bias, softcap=m.softcap)
        lse = kept.lse[0].double()
        if m.sinks is not None:
            lse = torch.logaddexp(lse, m.sinks.double()[:, None])
        return lse.masked_fill(lse == -torch.inf, 0.0)

    def value_step(self, head: int, bound: float) -> float:
        """What the values of a key head are multiples of."""
        assert self.m.v is not None
        values = self.m.v[0, head].double()
        return max(float(values.std(correction=0)) / VALUES[bound], float(values.abs().max()) / LARGEST, 1e-12)

    def sizes(self, bound: float) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        """About how many bytes the queries of each head, and the keys and the values of each key head pack to."""
        self.settle(COARSEST)
        steps = self.steps(COARSEST).tolist()
        finer, values_finer = log2(COARSEST / bound), log2(VALUES[bound] / VALUES[COARSEST])
        queries = [_size(q, steps[head // self.group], finer) for head, q in enumerate(self.q)]
        keys = [_size(k, step, finer) for k, step in zip(self.k, steps, strict=True)]
        if self.m.v is None:
            return queries, keys, [0.0] * len(keys)
        values = [_size(v, self.value_step(head, COARSEST), values_finer) for head, v in enumerate(self.m.v[0])]
        return queries, keys, values

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Q . k, (heads, rows, keys), where each head of k serves several of q that stand side by side."""
        heads, rows, width = q.shape
        return (q.reshape(len(k), -1, width) @ k.transpose(-1, -2)).reshape(heads, rows, k.shape[1])


def _size(t: Tensor, step: float, finer: float) -> float:
    """About how many bytes an array packs to: the entropy of its bytes, and so many bits more for each number."""
    some = t[:: max(1, len(t) // COUNTED)]
    bits = finer + sum(_entropy(plane) for plane in planes(shorts(some, step)))
    return bits / 8 * t.numel()


def _entropy(plane: np.ndarray) -> float:
    counts = np.bincount(plane.ravel().view(np.uint8), minlength=256)
    shares = counts[counts > 0] / plane.size
    return float(-(shares * np.log2(shares)).sum())
