"""Reshapes that join or part axes where they stand move no number from token to token."""

from __future__ import annotations

import pytest

from regard.check.properties.outputs.exchanged_axes import _exchanged


@pytest.mark.parametrize(
    ("given", "result"),
    [((2, 4, 2, 2, 1), (8, 2, 2)), ((3, 8, 2, 2), (3, 8, 4)), ((2, 5, 8), (10, 8)), ((2, 6, 4), (2, 2, 3, 4))],
)
def test_axes_that_are_joined_or_parted_are_not_exchanged(given: tuple[int, ...], result: tuple[int, ...]) -> None:
    assert _exchanged(given, result) is None
    assert _exchanged(result, given) is None


@pytest.mark.parametrize(
    ("given", "result", "said"),
    [((2, 8, 5), (2, 5, 8), (5, True)), ((2, 6, 8), (2, 8, 2, 3), (6, False))],
)
def test_tokens_that_stand_where_channels_stood_are_exchanged(
    given: tuple[int, ...], result: tuple[int, ...], said: tuple[int, bool]
) -> None:
    assert _exchanged(given, result) == said
