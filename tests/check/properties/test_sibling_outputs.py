"""Classes of one file of which one may stand for another, and the order of the axes of what they return."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from property_cases import drawn
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, tokens, heads, width) to (batch, heads, tokens, width)."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class Whole(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: None = None) -> Tensor:
        return attended(q, k, v).transpose(1, 2)


class Turned(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: None = None) -> Tensor:
        return attended(q, k, v)


class TurnedForItsCaller(nn.Module):
    """No other class takes the same arguments."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: None = None) -> Tensor:
        return attended(q, k, v)


def call(kind: type[nn.Module]) -> Invocation:
    arguments = {name: drawn(2, 5, 3, 4, seed=seed) for seed, name in enumerate("qkv")}
    return Invocation(kind(), arguments, [*"qkv"], [Stream(name, name, 0, (1,), 2) for name in "qkv"])


@pytest.mark.parametrize("kind", [Whole, TurnedForItsCaller])
def test_heads_and_tokens_may_be_exchanged_where_nothing_stands_beside(kind: type[nn.Module]) -> None:
    assert analyze(call(kind)).violations == []


def test_a_class_that_may_stand_for_another_returns_what_that_returns() -> None:
    (found,) = analyze(call(Turned)).violations
    assert found.property == "output-axes"
    assert "Whole, which takes the same arguments" in found.message
