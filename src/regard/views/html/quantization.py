"""The quantization of queries, keys and values in a page: as coarse as the error bound on the weights allows."""

from __future__ import annotations

from math import ceil, log, log2, sqrt

import numpy as np
import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.attention.steps import grouped_matmul
from regard.lens.maps.map import AttentionMap
from regard.views.html.codec import MAX_INT16, byte_planes, quantize_int16

VALUE_STEPS = {1e-5: 2000.0, 1e-4: 250.0, 9.5e-4: 24.0}
"""For each of `ERROR_BOUNDS`, the number of steps in a standard deviation of the values."""

ERROR_BOUNDS = tuple(VALUE_STEPS)
"""The largest difference between a weight that the page computes and the exact one; a small page takes the first."""

MAX_WEIGHT_ERROR = ERROR_BOUNDS[-1]

VERIFIED_WEIGHTS = 2**22
"""The number of weights of an attention that are compared with the page's; of a larger map, some rows are."""

UNSAMPLED_FACTOR = 1.5
"""The rows of a large map that are not compared may have a larger error: by this factor, and by one that grows with
the number of rows."""

STEP_MARGIN = 0.97
"""Twice the step gives about twice the error; rounding may add a little."""

GUESS_STRIDE = 8
"""The first guess of a head's step compares one in this many rows."""

MAX_SCORE_CHANGE = 80.0
"""A larger change of a score is far above every bound, and its exponential overflows float32."""

ENTROPY_ROWS = 2**12
"""The number of rows of an array from which its packed size is estimated."""


class MapQuantization:
    """The steps to which the queries, keys and values of one attention are rounded, for each error bound.

    Each key head has one step, for its keys and for the queries that attend to them.

    Args:
        m: a map of one batch row.
        weights: all of its weights, where they are already computed.
    """

    def __init__(self, m: AttentionMap, weights: Float[Tensor, "heads queries keys"] | None = None) -> None:
        self.m = m
        self.group = m.shape[1] // m.k.shape[1]
        self.q, self.k = (t[0].to(torch.promote_types(t.dtype, torch.float32)) for t in (m.q, m.k))
        self.v = m.v[0] if m.v is not None and bool(m.v.isfinite().all()) else None
        """The values; None where they are unknown or not finite."""
        rows = m.shape[2]
        self._stride = min(ceil(m.shape.numel() / VERIFIED_WEIGHTS), max(1, rows // 8))
        sampled = log(rows / self._stride)
        self._error_factor = 1.0 if self._stride == 1 else UNSAMPLED_FACTOR * sqrt(log(rows) / sampled)
        self._weights = weights if self._stride == 1 else None
        largest = torch.maximum(self.q.abs().amax((1, 2)).reshape(-1, self.group).amax(1), self.k.abs().amax((1, 2)))
        self._largest = largest.clamp_min(1e-9).double().cpu()
        self._min_steps = self._largest / MAX_INT16
        self._steps: dict[float, Tensor] = {}
        self._errors: dict[float, float] = {}
        self._bits: tuple[list[float], ...] | None = None

    def steps(self, bound: float) -> Float[Tensor, " kv_heads"]:
        """The step of queries and keys, for each key head."""
        if not self._steps:
            first = self._largest / 2**10
            # A head without error, since each query attends to one key alone, gets the step of a small error.
            error = self._weight_error(first, stride=GUESS_STRIDE).clamp_min(MAX_WEIGHT_ERROR / 16)
            self._steps[MAX_WEIGHT_ERROR] = torch.maximum(
                first * (STEP_MARGIN * MAX_WEIGHT_ERROR / error), self._min_steps
            )
        if bound not in self._steps:
            steps = self._steps[MAX_WEIGHT_ERROR] * (bound / MAX_WEIGHT_ERROR)
            self._steps[bound] = torch.maximum(steps, self._min_steps)
        return self._steps[bound]

    def fit(self, bound: float) -> float:
        """Compare the page's weights with the exact ones, and give smaller steps to heads with a larger error.

        Returns:
            The largest error with the final steps; of a large map, of which some rows are compared, an estimate.
        """
        if bound not in self._errors:
            steps = self.steps(bound)
            error = self._weight_error(steps)
            while bool((too_coarse := (error > bound) & (steps > self._min_steps)).any()):
                finer = torch.maximum(steps * (STEP_MARGIN * bound / error), self._min_steps)
                steps[too_coarse] = finer[too_coarse]
                error[too_coarse] = self._weight_error(steps, too_coarse)
            self._errors[bound] = float(error.max())
            self._weights = None  # the weights of all layers together would take too much memory
        return self._errors[bound]

    def _weight_error(
        self, steps: Float[Tensor, " kv_heads"], kv_heads: Bool[Tensor, " kv_heads"] | None = None, stride: int = 1
    ) -> Float[Tensor, " some"]:
        """The largest difference between a weight and the same weight with rounded queries and keys.

        With scores that change by d, a weight w becomes w * exp(d) / (1 + sum of w * (exp(d) - 1)); bias, mask and
        sinks do not change this formula.

        Args:
            steps: of all key heads.
            kv_heads: the key heads whose error is computed; all if not given.
            stride: of this many rows, one is compared.
        """
        m = self.m
        if self._weights is None:
            self._weights = m[0, :, :: self._stride].to(self.q.dtype)
        q, k = self.q[:, :: self._stride * stride], self.k
        weights = self._weights[:, ::stride]
        if kv_heads is not None:
            heads = kv_heads.repeat_interleave(self.group)
            q, k, weights, steps = q[heads], k[kv_heads], weights[heads], steps[kv_heads]
        q_rounded, k_rounded = _rounded(q, steps.repeat_interleave(self.group)), _rounded(k, steps)
        change = (grouped_matmul(q_rounded - q, k_rounded.mT) + grouped_matmul(q, (k_rounded - k).mT)).mul_(m.scale)
        if m.softcap is not None:
            scaled = grouped_matmul(q, k.mT).mul_(m.scale)
            capped = torch.tanh(scaled / m.softcap)
            change = torch.tanh((scaled + change) / m.softcap).sub_(capped).mul_(m.softcap)
        growth = change.clamp_(max=MAX_SCORE_CHANGE).expm1_()
        total = (weights * growth).sum(-1, keepdim=True)
        error = growth.sub_(total).mul_(weights).abs_().amax(-1) / (1 + total[..., 0])
        # Where the sum of a row's exponentials vanishes, its weights are lost.
        error = error.nan_to_num_(1.0).clamp_(max=1.0)
        return error.reshape(len(k), -1).amax(1).double().cpu() * self._error_factor

    def lse(self, bound: float) -> Float[Tensor, "heads queries"]:
        """Log-sum-exp of each row of rounded queries and keys, with the sink; 0 where there is nothing to attend to."""
        m, steps = self.m, self.steps(bound)
        q, k = _rounded(self.q, steps.repeat_interleave(self.group)), _rounded(self.k, steps)
        bias = m.bias.to(q.dtype) if isinstance(m.bias, Tensor) else m.bias
        rounded = AttentionMap(q[None], k[None], mask=m.mask, **{**m.score_options, "bias": bias, "sinks": None})
        lse = rounded.lse[0].double()
        if m.sinks is not None:
            lse = torch.logaddexp(lse, m.sinks.double()[:, None])
        return lse.masked_fill(lse == -torch.inf, 0.0)

    def value_step(self, head: int, bound: float) -> float:
        """The step of the values of a key head."""
        assert self.v is not None
        values = self.v[head].double()
        return max(float(values.std(correction=0)) / VALUE_STEPS[bound], float(values.abs().max()) / MAX_INT16, 1e-12)

    def packed_sizes(self, bound: float) -> tuple[list[float], list[float], list[float]]:
        """Estimated bytes of the queries of each head, and of the keys and of the values of each key head."""
        if self._bits is None:
            self.fit(MAX_WEIGHT_ERROR)
            steps = self.steps(MAX_WEIGHT_ERROR).tolist()
            v = self.k[:0] if self.v is None else self.v
            self._bits = (
                [_bits(q, steps[head // self.group]) for head, q in enumerate(self.q)],
                [_bits(k, step) for k, step in zip(self.k, steps, strict=True)],
                [_bits(values, self.value_step(head, MAX_WEIGHT_ERROR)) for head, values in enumerate(v)]
                or [0.0] * len(steps),
            )
        finer = log2(MAX_WEIGHT_ERROR / bound)
        arrays = (self.q, finer), (self.k, finer), (self.v, log2(VALUE_STEPS[bound] / VALUE_STEPS[MAX_WEIGHT_ERROR]))
        queries, keys, values = (
            [0.0 if t is None else (bits + extra_bits) / 8 * t[0].numel() for bits in bits_by_head]
            for bits_by_head, (t, extra_bits) in zip(self._bits, arrays, strict=True)
        )
        return queries, keys, values


def _rounded(t: Tensor, steps: Tensor) -> Tensor:
    """(heads, tokens, width) in multiples of each head's step, as a page decodes them."""
    steps = steps[:, None, None].to(t.device)
    # The step of a page has 64 bits. With fewer, the largest multiples would be off by a share of a step that shows.
    return (t / steps.to(t)).round_().double().mul_(steps).to(t)


def _bits(t: Tensor, step: float) -> float:
    """Estimated bits per number after compression: the entropy of the bytes."""
    sample = t[:: max(1, len(t) // ENTROPY_ROWS)]
    return sum(_entropy(plane) for plane in byte_planes(quantize_int16(sample, step)))


def _entropy(plane: np.ndarray) -> float:
    counts = np.bincount(plane.ravel().view(np.uint8), minlength=256)
    shares = counts[counts > 0] / plane.size
    return float(-(shares * np.log2(shares)).sum())
