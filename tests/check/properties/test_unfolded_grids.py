"""Places of a picture that come back from its tokens: in the order in which they went."""

from __future__ import annotations

import pytest
from torch import Tensor

from attention_styles import tokens_call
from property_cases import drawn
from regard.check.properties.outputs.unfolded_grids import unfolded_grid_findings
from regard.check.roles.influence import record_invocation
from regard.check.target import Stream

ROWS, COLUMNS, WIDTH = 3, 4, 8


def attended(tokens: Tensor) -> Tensor:
    return tokens + (tokens @ tokens.mT).softmax(-1) @ tokens


def by_rows(x: Tensor) -> Tensor:
    return x + attended(x.flatten(2).mT).mT.reshape(x.shape)


def by_columns(x: Tensor) -> Tensor:
    """Column by column, on both ways."""
    tokens = attended(x.mT.flatten(2).mT)
    return x + tokens.mT.reshape(-1, WIDTH, COLUMNS, ROWS).mT


def of_another_order(x: Tensor) -> Tensor:
    """Row by row, and back column by column."""
    tokens = attended(x.flatten(2).mT)
    return x + tokens.reshape(-1, COLUMNS, ROWS, WIDTH).permute(0, 3, 2, 1)


def said_of(function: object) -> list[str]:
    call = tokens_call(function, drawn(2, WIDTH, ROWS, COLUMNS, seed=0))
    call.streams = [Stream(call.streams[0].argument, "x", 0, (2, 3))]
    return [each.message for each in unfolded_grid_findings(call, record_invocation(call, lines=True))]


@pytest.mark.parametrize("function", [by_rows, by_columns])
def test_places_that_come_back_as_they_went_are_right(function: object) -> None:
    assert said_of(function) == []


def test_places_that_come_back_in_another_order_are_wrong() -> None:
    (said,) = said_of(of_another_order)
    assert said.startswith("3 rows of 4 were made one axis of 12 tokens, and come back as 4 rows of 3")
