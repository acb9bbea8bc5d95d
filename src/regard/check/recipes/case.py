"""The input of one call: tensors, masks, and the weights of a module by their role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Case", "ProjectionWeights", "causal"]


@dataclass(frozen=True, eq=False)
class ProjectionWeights:
    """The parameters of a module by their role, as `torch.nn.Linear` stores them: (out, in)."""

    q: Tensor
    k: Tensor
    v: Tensor
    heads: int
    kv_heads: int
    out: Tensor | None = None
    bias_q: Tensor | None = None
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None
    bias_out: Tensor | None = None
    extra: Mapping[str, Tensor | float] = field(default_factory=dict)
    """What designs bring along: norms of queries and keys, sinks, a bias by distance, a soft-cap."""


@dataclass(frozen=True, eq=False)
class Case:
    """The input of one call, in the definition's own layout."""

    q: Tensor | None = None
    """(batch, heads, queries, d_key); k and v likewise. For functions."""
    k: Tensor | None = None
    v: Tensor | None = None
    x: Tensor | None = None
    """(batch, queries, d_model). For modules, with context and their weights."""
    context: Tensor | None = None
    """What keys are made of, if not x: (batch, keys, d_model)."""
    values: Tensor | None = None
    """What values are made of, if not the context: (batch, keys, d_model)."""
    weights: ProjectionWeights | None = None
    may: Tensor | None = None
    """(batch or 1, 1, queries, keys), True = may attend."""
    bias: Tensor | None = None
    """Added to the scaled scores."""
    extra: Mapping[str, Tensor | float] = field(default_factory=dict)

    @property
    def extras(self) -> dict[str, Tensor | float]:
        """What designs bring along, of the call and of the module."""
        return {**self.extra, **(self.weights.extra if self.weights is not None else {})}

    @property
    def batch_size(self) -> int:
        """How many samples the call has."""
        return len(self.q if self.q is not None else self.x)  # type: ignore[arg-type]


def causal(queries: int, keys: int) -> Tensor:
    """(1, 1, queries, keys): up to and including its own position, the last query at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None]
