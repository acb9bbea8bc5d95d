"""Random maps with any mask and any options, and attention with their values by the definition, with its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import masks
import regard
from cases import KernelLimits
from lens.recordings import random_map
from regard.attention.bias import PositionBias
from regard.attention.positions import ALiBi, T5Relative
from regard.lens import AttentionMap

BIASES = {
    "none": lambda heads, queries, keys: None,
    "of pairs": lambda heads, queries, keys: 3 * torch.linspace(-1, 1, queries * keys).sin().view(queries, keys),
    "of keys": lambda heads, queries, keys: torch.linspace(-2, 2, heads * keys).view(heads, 1, keys),
    "blocks": lambda heads, queries, keys: torch.zeros(keys).masked_fill(torch.arange(keys) % 3 == 1, -torch.inf),
    "ALiBi": lambda heads, queries, keys: ALiBi(heads),
    "T5": lambda heads, queries, keys: T5Relative(heads, num_buckets=8, max_distance=16).requires_grad_(False),
}

KERNEL_LIMITS = {
    "default": KernelLimits(),
    "small blocks": KernelLimits(max_dense_pairs=0, tile_rows=8, tile_columns=4),
}


class LargeMap(AttentionMap):
    """Computes as maps of millions of weights do: in float32, few scores at once."""

    max_float64_weights = 0
    scores_at_once = 1


@dataclass
class MapCase:
    """A map with values, as a plain specification."""

    mask: masks.MaskCase
    group: int
    d_value: int
    bias: str
    sinks: bool
    softcap: float | None
    scale: float | None
    limits: str

    def make(self) -> AttentionMap:
        """The map, in float64."""
        batch, heads, queries, keys = self.mask.batch, self.mask.heads, self.mask.queries, self.mask.keys
        bias = BIASES[self.bias](heads, queries, keys)
        return random_map(
            queries,
            keys,
            batch=batch,
            heads=heads,
            kv_heads=max(1, heads // self.group),
            d_value=self.d_value,
            dtype=torch.float64,
            sampled=False,
            mask=masks.build(self.mask.spec),
            bias=bias.double() if bias is not None else None,
            sinks=torch.linspace(-1, 2, heads).double() if self.sinks else None,
            softcap=self.softcap,
            scale=self.scale,
        )


def map_cases(*, max_tokens: int = 30) -> st.SearchStrategy[MapCase]:
    """Any mask with any options; the scale of 8 makes weights that are nearly 1."""
    return st.builds(
        MapCase,
        mask=masks.cases(max_tokens=max_tokens, min_tokens=1, depth=2),
        group=st.integers(1, 2),
        d_value=st.sampled_from([1, 5, 12]),
        bias=st.sampled_from(["none", *BIASES]),
        sinks=st.booleans(),
        softcap=st.sampled_from([None, None, 1.5]),
        scale=st.sampled_from([None, None, 8.0, -0.7, 0.0]),
        limits=st.sampled_from([*KERNEL_LIMITS]),
    )


class Definition:
    """Attention with the values of a map by `regard.steps` in float64, each query head with values of its own.

    A bias of zeros stands for the softmax's input: its gradient is dS.
    """

    def __init__(self, m: AttentionMap, mask: Any = None) -> None:
        group = m.shape[1] // m.k.shape[1]
        k = m.k.double().repeat_interleave(group, 1)
        self.v = m.v.double().repeat_interleave(group, 1).requires_grad_()
        self.zeros = torch.zeros(m.shape, dtype=torch.float64, requires_grad=True)
        bias = m.bias.dense(*m.shape[2:]) if isinstance(m.bias, PositionBias) else m.bias
        options = m.score_options | {
            "bias": self.zeros if bias is None else self.zeros + bias.double(),
            "sinks": None if m.sinks is None else m.sinks.double(),
        }
        allowed = [part for part in (m.mask, mask) if part is not None]
        both = allowed[0] & allowed[1] if len(allowed) == 2 else next(iter(allowed), None)
        self.steps = regard.steps(m.q.double(), k, self.v, both, **options)
        self.weights, self.output = self.steps.weights.detach(), self.steps.output.detach()

    def gradients(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """dV and dS, by autograd."""
        return torch.autograd.grad(self.steps.output, (self.v, self.zeros), grad.double())


def assert_near(ours: Tensor, expected: Tensor, limit: float = 1e-10) -> None:
    """Equal in float64, but for rounding."""
    torch.testing.assert_close(ours.double(), expected.detach(), rtol=0, atol=limit)
