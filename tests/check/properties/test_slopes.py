"""Slopes of a bias that is linear in the distance, of a number of heads that is no power of two."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from property_cases import of_x
from property_cases.score_cases import last_keys_favored, with_slopes
from regard.check.properties.analysis import analyze

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
