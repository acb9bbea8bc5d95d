"""A setting called causal beside a mask that may be handed over: a promise, or a choice of positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn, of_module
from regard.check.properties.analyze import analyze


class WithASetting(nn.Module):
    """It is told that it is causal, and nothing reads that."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal, self.qkv = causal, nn.Linear(WIDTH, 3 * WIDTH)

    def added(self, tokens: int) -> Tensor:
        return torch.zeros(tokens, tokens)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / WIDTH**0.5 + self.added(x.shape[1])
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


class WithPositionsOfBothSides(WithASetting):
    """Distances have a bias on one side where the caller hides the other, else on both (Conformer)."""

    def added(self, tokens: int) -> Tensor:
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
        far = drawn(2 * tokens, seed=3)
        return far[distance.clamp(min=0)] if self.causal else far[distance + tokens]


class WithFewerOutputs(WithASetting):
    """Without it, something else is returned besides."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = super().forward(x, mask)
        return out if self.causal else (out, out)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "violations"),
    [(WithASetting, ["mask-pattern"]), (WithPositionsOfBothSides, []), (WithFewerOutputs, [])],
)
def test_a_setting_that_changes_something_else_promises_no_mask(kind: type[nn.Module], violations: list[str]) -> None:
    found = analyze(replace(of_module(kind), masks=["mask"])).violations
    assert [each.property for each in found if each.property == "mask-pattern"] == violations
