"""Slopes of a bias that is linear in the distance, of a number of heads that is no power of two, and others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, joined, of_x, split
from property_cases.score_cases import last_keys_favored, with_slopes
from regard.check.properties.analyze import analyze

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

OF_FOUR = [2**-2, 2**-4, 2**-6, 2**-8]


@pytest.mark.parametrize(
    ("others", "kind"),
    [([2**-1, 2**-3, 2**-5], "design"), ([2**-1, 2**-2, 2**-5], "violation")],
    ids=["every second of eight", "any others"],
)
def test_the_slopes_beyond_a_power_of_two_are_geometric_as_well(others: list[float], kind: str) -> None:
    def of_seven_heads(x: Tensor) -> Tensor:
        return with_slopes(x[..., :7], OF_FOUR + others)

    (found,) = [each for each in analyze(of_x(of_seven_heads)).findings if each.step == "bias"]
    assert found.kind == kind


class Directed(nn.Module):
    """Of both directions, or of one: another configuration may hide what comes later."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        return last_keys_favored(x)


@pytest.mark.parametrize("masks", [(), ("mask",)], ids=["by a setting", "by an argument"])
def test_a_bias_may_grow_after_the_query_where_later_keys_may_be_hidden(masks: tuple[str, ...]) -> None:
    call = of_x(last_keys_favored if masks else Directed(), tokens=5, masks=masks)
    assert analyze(call).violations == []


class ALiBi(nn.Module):
    """Slopes that are told."""

    def __init__(self, slopes: list[float], *, shares: bool = False) -> None:
        super().__init__()
        self.slopes, self.shares = slopes, shares

    def forward(self, x: Tensor) -> Tensor:
        if not self.shares:
            return with_slopes(x, self.slopes)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        heads = split(x, len(self.slopes))
        keys = heads[:, ::2].repeat_interleave(2, 1)
        scores = heads @ keys.mT / heads.shape[-1] ** 0.5 - torch.tensor(self.slopes)[:, None, None] * distance
        return joined(scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ keys)


class FromOne(ALiBi):
    """The slopes of ALiBi start at 1 here, so that the first head is the most local one."""


def of_heads(count: int) -> list[float]:
    power = 1 << (count.bit_length() - 1)
    return [2 ** (-8 * (head + 1) / power) for head in range(power)] + [
        2 ** (-4 * (2 * head + 1) / power) for head in range(count - power)
    ]


@pytest.mark.parametrize("count", [6, 8, 12])
def test_published_slopes_of_any_number_of_heads_are_right(count: int) -> None:
    call = of_x(ALiBi(of_heads(count)))
    call.arguments["x"] = drawn(2, 4, 2 * count, seed=0)
    (found,) = [each for each in analyze(call).findings if each.step == "bias"]
    assert found.kind == "design"


@pytest.mark.parametrize("count", [6, 8, 12])
def test_a_slope_that_two_heads_have_is_wrong(count: int) -> None:
    slopes = of_heads(count)
    slopes[-1] = slopes[0]
    call = of_x(ALiBi(slopes))
    call.arguments["x"] = drawn(2, 4, 2 * count, seed=0)
    (found,) = analyze(call).violations
    assert f"heads 0 and {count - 1} have the same slope" in found.message
    assert found.message.endswith(f"{of_heads(count)[-1]:.3g}")


def test_slopes_that_start_with_one_are_wrong_where_nothing_says_so() -> None:
    slopes = [2 ** (-8 * head / 4) for head in range(4)]
    assert [each.property for each in analyze(of_x(ALiBi(slopes))).violations] == ["alibi-slopes"]
    assert analyze(of_x(FromOne(slopes))).violations == []


def test_heads_that_share_keys_may_share_a_slope() -> None:
    assert analyze(of_x(ALiBi([2**-4, 2**-4, 2**-8, 2**-8], shares=True))).violations == []


class AsPublished(ALiBi):
    """The slopes are those of the reference code."""


class AsPublishedForPowers(ALiBi):
    """The slopes are those of the reference code for a power of two heads."""


class EverySecondOfOthers(ALiBi):
    """Linear biases: 2^(-8/n), 2^(-16/n), ... for a power of two, otherwise of the next lower one, and every second
    slope of twice as many."""


class NotEverySecond(ALiBi):
    """Linear biases of powers of two heads, and of other numbers not those of every second slope."""


def test_slopes_that_are_told_of_other_numbers_of_heads_are_those() -> None:
    slopes = [2 ** (-8 * (head + 1) / 3) for head in range(3)]
    for kind in (EverySecondOfOthers, NotEverySecond):
        call = of_x(kind(slopes))
        call.arguments["x"] = drawn(2, 4, 6, seed=0)
        found = {each.property for each in analyze(call).violations}
        assert found == ({"alibi-slopes"} if kind is EverySecondOfOthers else set())


def test_the_plain_powers_are_not_the_published_ones_of_other_numbers_of_heads() -> None:
    for count in (3, 4):
        slopes = [2 ** (-8 * (head + 1) / count) for head in range(count)]
        for kind in (ALiBi, AsPublished, AsPublishedForPowers):
            call = of_x(kind(slopes))
            call.arguments["x"] = drawn(2, 4, 2 * count, seed=0)
            found = {each.property for each in analyze(call).violations}
            assert found == ({"alibi-slopes"} if kind is AsPublished and count == 3 else set())


@pytest.mark.parametrize(
    ("slopes", "properties"),
    [
        ([2**-4, 2**-8, 0.0, 0.0], []),
        ([0.0, 0.0, 2**-4, 2**-8], []),
        ([2**-4, 2**-4, 0.0, 0.0], ["alibi-slopes"]),
        ([-(2**-4), -(2**-8), 0.0, 0.0], ["alibi-sign"]),
    ],
)
def test_some_heads_may_have_no_slope(slopes: list[float], properties: list[str]) -> None:
    assert [each.property for each in analyze(of_x(ALiBi(slopes))).violations] == properties
