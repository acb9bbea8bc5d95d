"""How finely a page keeps queries, keys and values: so that its weights stay near the exact ones, and no finer."""

from __future__ import annotations

from math import ceil, log, log2, sqrt

import numpy as np
import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.attention.steps import grouped_matmul
from regard.lens.maps.map import AttentionMap
from regard.views.html.codec import LARGEST, planes, shorts

__all__ = ["BOUNDS", "COARSEST", "Fineness"]

BOUNDS = (1e-5, 1e-4, 9.5e-4)
"""How far a weight that the page computes may be from the exact one, in a small page first; the last is the most."""

COARSEST = BOUNDS[-1]

VALUES = dict(zip(BOUNDS, (2000.0, 250.0, 24.0), strict=True))
"""For each bound, into how many steps a standard deviation of the values is cut."""

HELD = 2**22
"""So many weights of an attention are held against the page's: every one, where there are no more."""

UNSEEN = 1.5
"""Of more, some rows are. One of the others may be farther off, by this factor and one that grows with them."""

MARGIN = 0.97
"""Twice the step is twice as far off, but for luck with rounding."""

GUESSED = 8
"""The first guess of how finely to keep a head is made from one in so many of those rows."""

LARGEST_CHANGE = 80.0
"""A score that changes by more is far too far off, and its exponential has no place in float32."""

COUNTED = 2**12
"""So many rows of an array tell how well it packs."""


class Fineness:
    """How finely the queries, keys and values of one attention are kept, for some bound.

    Each key head has one step, for its keys and for the queries that look at them.

    Args:
        m: a map of one batch row.
        weights: every weight of it, where they are known.
    """

    def __init__(self, m: AttentionMap, weights: Float[Tensor, "heads queries keys"] | None = None) -> None:
        self.m = m
        self.group = m.shape[1] // m.k.shape[1]
        self.q, self.k = (t[0].to(torch.promote_types(t.dtype, torch.float32)) for t in (m.q, m.k))
        self.v = m.v[0] if m.v is not None and bool(m.v.isfinite().all()) else None
        """The values; None where they are not known or not finite."""
        rows = m.shape[2]
        self._every = min(ceil(m.shape.numel() / HELD), max(1, rows // 8))
        self._unseen = 1.0 if self._every == 1 else UNSEEN * sqrt(log(rows) / log(rows / self._every))
        self._weights = weights if self._every == 1 else None
        largest = torch.maximum(self.q.abs().amax((1, 2)).reshape(-1, self.group).amax(1), self.k.abs().amax((1, 2)))
        self._largest = largest.clamp_min(1e-9).double().cpu()
        self._finest = self._largest / LARGEST
        self._steps: dict[float, Tensor] = {}
        self._within: dict[float, float] = {}
        self._bits: tuple[list[float], ...] | None = None

    def steps(self, bound: float) -> Float[Tensor, " kv_heads"]:
        """What queries and keys are multiples of, for each key head."""
        if not self._steps:
            first = self._largest / 2**10
            # A head that cannot be off, since it looks at one key alone, is kept as finely as one that is a little.
            off = self._off(first, every=GUESSED).clamp_min(COARSEST / 16)
            self._steps[COARSEST] = torch.maximum(first * (MARGIN * COARSEST / off), self._finest)
        if bound not in self._steps:
            self._steps[bound] = torch.maximum(self._steps[COARSEST] * (bound / COARSEST), self._finest)
        return self._steps[bound]

    def settle(self, bound: float) -> float:
        """Hold the weights of the page against the exact ones, and keep heads that are too far off more finely.

        Returns:
            The largest difference that is left; of a large map, of which some rows are looked at, about that.
        """
        if bound not in self._within:
            steps = self.steps(bound)
            off = self._off(steps)
            while bool((again := (off > bound) & (steps > self._finest)).any()):
                steps[again] = torch.maximum(steps * (MARGIN * bound / off), self._finest)[again]
                off[again] = self._off(steps, again)
            self._within[bound] = float(off.max())
            self._weights = None  # of many layers they are many
        return self._within[bound]

    def _off(
        self, steps: Float[Tensor, " kv_heads"], some: Bool[Tensor, " kv_heads"] | None = None, every: int = 1
    ) -> Float[Tensor, " some"]:
        """The largest difference between a weight and what it is with multiples of these steps.

        With scores that change by d, a weight w becomes w * exp(d) / (1 + sum of w * (exp(d) - 1)); a bias, a mask and
        a sink change nothing about that.

        Args:
            steps: of all key heads.
            some: of which key heads the difference is wanted; of all if not given.
            every: of how many rows one is held against the exact one.
        """
        m = self.m
        if self._weights is None:
            self._weights = m[0, :, :: self._every].to(self.q.dtype)
        q, k, weights, steps = self.q[:, :: self._every * every], self.k, self._weights[:, ::every], steps.to(self.q)
        if some is not None:
            heads = some.repeat_interleave(self.group)
            q, k, weights, steps = q[heads], k[some], weights[heads], steps[some]
        q_kept, k_kept = (_kept(t, step) for t, step in ((q, steps.repeat_interleave(self.group)), (k, steps)))
        change = (grouped_matmul(q_kept - q, k_kept.mT) + grouped_matmul(q, (k_kept - k).mT)).mul_(m.scale)
        if m.softcap is not None:
            scaled = grouped_matmul(q, k.mT).mul_(m.scale)
            capped = torch.tanh(scaled / m.softcap)
            change = torch.tanh((scaled + change) / m.softcap).sub_(capped).mul_(m.softcap)
        growth = change.clamp_(max=LARGEST_CHANGE).expm1_()
        total = (weights * growth).sum(-1, keepdim=True)
        off = growth.sub_(total).mul_(weights).abs_().amax(-1) / (1 + total[..., 0])
        # Where nothing is left of a row's sum, the weights that it had are gone.
        off = off.nan_to_num_(1.0).clamp_(max=1.0)
        return off.reshape(len(k), -1).amax(1).double().cpu() * self._unseen

    def norms(self, bound: float) -> Float[Tensor, "heads queries"]:
        """The logarithm of each row's sum of exponentials, with the sink, of what is kept; 0 where there is nothing."""
        m, steps = self.m, self.steps(bound)
        q, k = _kept(self.q, steps.repeat_interleave(self.group).to(self.q)), _kept(self.k, steps.to(self.k))
        bias = m.bias.to(q.dtype) if isinstance(m.bias, Tensor) else m.bias
        kept = AttentionMap(q[None], k[None], mask=m.mask, **{**m.score_options, "bias": bias, "sinks": None})
        lse = kept.lse[0].double()
        if m.sinks is not None:
            lse = torch.logaddexp(lse, m.sinks.double()[:, None])
        return lse.masked_fill(lse == -torch.inf, 0.0)

    def value_step(self, head: int, bound: float) -> float:
        """What the values of a key head are multiples of."""
        assert self.v is not None
        values = self.v[head].double()
        return max(float(values.std(correction=0)) / VALUES[bound], float(values.abs().max()) / LARGEST, 1e-12)

    def sizes(self, bound: float) -> tuple[list[float], list[float], list[float]]:
        """About how many bytes the queries of each head, and the keys and the values of each key head pack to."""
        if self._bits is None:
            self.settle(COARSEST)
            steps = self.steps(COARSEST).tolist()
            values = [] if self.v is None else [_bits(v, self.value_step(i, COARSEST)) for i, v in enumerate(self.v)]
            self._bits = (
                [_bits(q, steps[head // self.group]) for head, q in enumerate(self.q)],
                [_bits(k, step) for k, step in zip(self.k, steps, strict=True)],
                values or [0.0] * len(steps),
            )
        finer = log2(COARSEST / bound)
        each = (self.q, finer), (self.k, finer), (self.v, log2(VALUES[bound] / VALUES[COARSEST]))
        queries, keys, values = (
            [0.0 if t is None else (bits + more) / 8 * t[0].numel() for bits in known]
            for known, (t, more) in zip(self._bits, each, strict=True)
        )
        return queries, keys, values


def _kept(t: Tensor, steps: Tensor) -> Tensor:
    """What a page holds of (heads, tokens, width)."""
    steps = steps[:, None, None]
    return (t / steps).round_().mul_(steps)


def _bits(t: Tensor, step: float) -> float:
    """About how many bits a number of an array packs to: the entropy of its bytes."""
    some = t[:: max(1, len(t) // COUNTED)]
    return sum(_entropy(plane) for plane in planes(shorts(some, step)))


def _entropy(plane: np.ndarray) -> float:
    counts = np.bincount(plane.ravel().view(np.uint8), minlength=256)
    shares = counts[counts > 0] / plane.size
    return float(-(shares * np.log2(shares)).sum())
