"""Linear attention in which sources compete and sinks are gated, by products with normalized sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.check import check

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def flow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of (batch, heads, tokens, channels)."""
    q, k = q.sigmoid(), k.sigmoid()
    taken = (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
    sent = (k * q.sum(2, keepdim=True)).sum(-1, keepdim=True)
    allocated = (q * (k / sent).sum(2, keepdim=True)).sum(-1, keepdim=True).sigmoid()
    competing = (k * (q / taken).sum(2, keepdim=True)).sum(-1, keepdim=True).softmax(2) * k.shape[2]
    return q @ (k.mT @ (v * competing)) / taken * allocated


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same of other features, with a small number in each sum."""
    q, k = F.softplus(q), F.softplus(k)
    taken = 1 / torch.einsum("bhld,bhd->bhl", q + 1e-6, k.sum(2) + 1e-6)
    sent = 1 / torch.einsum("bhsd,bhd->bhs", k + 1e-6, q.sum(2) + 1e-6)
    allocated = torch.sigmoid(torch.einsum("bhld,bhd->bhl", q, (k * sent[..., None]).sum(2)))
    competing = torch.softmax(torch.einsum("bhsd,bhd->bhs", k, (q * taken[..., None]).sum(2)), -1)
    context = torch.einsum("bhsd,bhse->bhde", k, v * competing[..., None])
    return torch.einsum("bhld,bhde->bhle", q * taken[..., None], context) * allocated[..., None]


def gates_joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One factor divides what is read, and gates it."""
    q, k = q.sigmoid(), k.sigmoid()
    taken = 1 / torch.einsum("bhld,bhd->bhl", q, k.sum(2))
    sent = 1 / torch.einsum("bhsd,bhd->bhs", k, q.sum(2))
    allocated = torch.sigmoid(torch.einsum("bhld,bhd->bhl", q, (k * sent[..., None]).sum(2)))
    competing = torch.softmax(torch.einsum("bhsd,bhd->bhs", k, (q * taken[..., None]).sum(2)), -1)
    return q @ (k.mT @ (v * competing[..., None])) * (taken * allocated)[..., None]


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads compete, and not sources."""
    q, k = q.sigmoid(), k.sigmoid()
    taken = 1 / torch.einsum("bhld,bhd->bhl", q, k.sum(2))
    sent = 1 / torch.einsum("bhsd,bhd->bhs", k, q.sum(2))
    allocated = torch.sigmoid(torch.einsum("bhld,bhd->bhl", q, (k * sent[..., None]).sum(2)))
    competing = torch.softmax(torch.einsum("bhsd,bhd->bhs", k, (q * taken[..., None]).sum(2)), 1)
    return q @ (k.mT @ (v * competing[..., None])) * (taken * allocated)[..., None]


def not_through_a_gate(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the normalized sums hold is added to what is read, and not a gate of it."""
    q, k = q.sigmoid(), k.sigmoid()
    taken = 1 / torch.einsum("bhld,bhd->bhl", q, k.sum(2))
    sent = 1 / torch.einsum("bhsd,bhd->bhs", k, q.sum(2))
    allocated = torch.einsum("bhld,bhd->bhl", q, (k * sent[..., None]).sum(2))
    competing = torch.softmax(torch.einsum("bhsd,bhd->bhs", k, (q * taken[..., None]).sum(2)), -1)
    return q @ (k.mT @ (v * competing[..., None])) * taken[..., None] + allocated[..., None]


class Flow(nn.Module):
    """With projections."""

    read = staticmethod(by_einsum)

    def __init__(self, d_model: int = 16, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(self.read(q, k, v).transpose(1, 2).flatten(2))


class FlowOfJoinedGates(Flow):
    """What divides is multiplied by the gate first."""

    read = staticmethod(gates_joined)


@pytest.mark.parametrize("kind", [flow, by_einsum, gates_joined, Flow, FlowOfJoinedGates])
def test_sources_that_compete_are_a_design(kind: Any) -> None:
    assert check(kind).verdict == "different by design"


@pytest.mark.parametrize("function", [over_heads, not_through_a_gate])
def test_other_products_are_none(function: Any) -> None:
    assert check(function).verdict == "wrong"
