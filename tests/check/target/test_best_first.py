"""The search among candidates of choices."""

from __future__ import annotations

import pytest

from regard.check.target.best_first import best_first
from regard.check.target.errors import Failed
from regard.check.time_limit import time_limit


@pytest.mark.parametrize("max_tries", [1, 2, 5])
def test_it_ends_after_as_many_tries_as_it_may_make(max_tries: int) -> None:
    tried = []

    def attempt(choices: dict[str, int]) -> None:
        tried.append(choices)
        raise Failed("never")

    assert list(best_first({"one": 4, "other": 4}, attempt, max_tries).results()) == []
    assert len(tried) == max_tries


def test_it_makes_one_try_and_no_more_where_the_time_is_over() -> None:
    tried = []

    def attempt(choices: dict[str, int]) -> None:
        tried.append(choices)
        raise Failed("never")

    with time_limit(0):
        assert list(best_first({"one": 4, "other": 4}, attempt, 5).results()) == []
    assert len(tried) == 1
