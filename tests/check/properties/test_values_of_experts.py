"""Values that experts make are sums as well: of what each of them gives, not of the values of several heads."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import HEADS, WIDTH, drawn, joined, of_x, split
from regard.check.properties.analyze import analyze

W_Q, W_K = (drawn(WIDTH, WIDTH, seed=seed) for seed in (10, 11))
EXPERTS = drawn(HEADS, WIDTH, WIDTH, seed=12)
"""As many as heads."""


def values_of_experts(x: Tensor) -> Tensor:
    values = torch.stack([x @ expert for expert in EXPERTS]).sum(0)
    return joined((split(x @ W_Q) @ split(x @ W_K).mT / 2).softmax(-1) @ split(values))


def test_values_that_several_experts_make_are_not_summed_over_heads() -> None:
    assert analyze(of_x(values_of_experts)).violations == []
