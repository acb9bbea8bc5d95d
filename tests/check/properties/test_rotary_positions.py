"""Positions that rotate queries and keys, beside what has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attention_styles import heads_call
from property_cases import drawn, joined, of_module, of_q_k_v, of_x, split
from property_cases.position_cases import ANGLES, keys_conjugated, parts_of_keys_exchanged, rotated
from regard.check.properties.analysis import analyze


@pytest.mark.parametrize("is_first", [True, False], ids=["sink first", "sink last"])
def test_a_learned_value_beside_those_of_the_tokens_is_no_position(is_first: bool) -> None:
    def with_a_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (
            torch.cat((learned, each) if is_first else (each, learned), 2)
            for each, learned in ((rotated(k), drawn(2, 2, 1, 4, seed=5)), (v, drawn(2, 2, 1, 4, seed=6)))
        )
        return (rotated(q) @ k.mT / 2).softmax(-1) @ v

    found = {each.property for each in analyze(of_q_k_v(with_a_sink)).designs}
    assert found == {"rotary", "sinks"}


def other_angles_for_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (rotated(q) @ rotated(k, ANGLES * 0.7).mT / 2).softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (parts_of_keys_exchanged, "at other places in keys than in queries (by 2 channels of 4)"),
        (other_angles_for_keys, "queries and keys are rotated by angles that differ"),
    ],
)
def test_keys_whose_channels_moved_are_told_from_keys_of_other_angles(
    function: Callable[..., Tensor], says: str
) -> None:
    (found,) = analyze(of_q_k_v(function)).violations
    assert says in found.message


def test_the_scale_of_rotated_complex_numbers_is_known() -> None:
    found = analyze(of_q_k_v(keys_conjugated)).findings
    kinds = {each.property: each.kind for each in found}
    assert (kinds["scale"], kinds["rotary"]) == ("holds", "design")


def scaled_by_the_place(x: Tensor) -> Tensor:
    """Queries alone are longer the later they come, in each head by a number of its own."""
    scales = 1 + torch.arange(x.shape[1]).double()[:, None] * torch.tensor([0.5, -0.1]).double()[:, None, None]
    return joined((split(x) * scales @ split(x).mT / 2).softmax(-1) @ split(x))


def test_a_scale_of_each_query_is_no_position() -> None:
    found = analyze(of_x(scaled_by_the_place)).violations
    assert "positions-without-effect" not in {each.property for each in found}


def test_one_query_at_the_first_position_is_turned_by_nothing() -> None:
    def by_its_table(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (rotated(q, ANGLES[:1]) @ rotated(k, ANGLES[:1]).mT / 2).softmax(-1) @ v

    call = heads_call(by_its_table, drawn(2, 2, 1, 4, seed=0), *(drawn(2, 2, 3, 4, seed=seed) for seed in (1, 2)))
    assert not analyze(call).violations


class ScaledAfterwards(nn.Module):
    """HunYuan: rotated queries and keys are normalized, each channel times a learned weight."""

    def __init__(self, scale_of_positions: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.stretch = nn.RMSNorm(4), scale_of_positions

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1]).repeat(2)
        q, k = (rotated(split(each(x)), angles) * (1 + self.stretch * angles) for each in (self.q, self.k))
        q, k = (self.norm(q), self.norm(k)) if not self.stretch else (q * self.norm.weight, k * self.norm.weight)
        return joined((q @ k.mT / 2).softmax(-1) @ split(self.v(x)))


def test_learned_weights_of_a_norm_may_come_after_the_rotation() -> None:
    found = analyze(of_module(ScaledAfterwards))
    assert {"scaled-after-positions", "rotary"} <= {each.property for each in found.designs}
    assert not found.violations


def test_what_stretches_by_the_position_is_no_scale_of_a_norm() -> None:
    found = analyze(of_module(lambda: ScaledAfterwards(0.5)))
    assert {each.step for each in found.violations} == {"positions"}
