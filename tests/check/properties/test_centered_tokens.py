"""Queries and keys less their mean over the tokens, and weights of each key alone beside those of the pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, joined, of_module, split
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Whitened(nn.Module):
    """Disentangled: whitened pairs, and a unary term of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.unary = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(each(x)) for each in (self.q, self.k, self.v))
        q, k = q - q.mean(-2, keepdim=True), k - k.mean(-2, keepdim=True)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return joined((weights + self.of_keys(x)) @ v)

    def of_keys(self, x: Tensor) -> Tensor:
        return self.unary(x).mT[:, :, None].softmax(-1)


class NotNormalized(Whitened):
    """Whitened, with a unary term that is no softmax."""

    def of_keys(self, x: Tensor) -> Tensor:
        return self.unary(x).mT[:, :, None].sigmoid()


class Subtracted(Whitened):
    """Nothing says that the mean over the tokens is meant."""

    def of_keys(self, x: Tensor) -> Tensor:
        return torch.zeros(())


def _found(kind: type[nn.Module]) -> set[tuple[str, str]]:
    findings = analyze(of_module(kind)).findings
    return {(each.kind, each.property) for each in findings if each.kind in ("violation", "design")}


def test_whitened_pairs_beside_a_unary_term_are_a_design() -> None:
    assert _found(Whitened) == {("design", "query-of-one-token"), ("design", "unary-weights")}


def test_weights_that_are_no_softmax_are_not_added() -> None:
    assert ("violation", "weights-kept") in _found(NotNormalized)


def test_a_mean_that_nothing_speaks_of_mixes_the_tokens() -> None:
    assert {name for kind, name in _found(Subtracted) if kind == "violation"} & {
        "query-of-one-token",
        "key-of-one-token",
    }
