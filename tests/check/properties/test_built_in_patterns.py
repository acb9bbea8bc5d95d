"""The name of who may attend to whom, and what is wrong with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.check.properties.masks.barred_keys import BARRED
from regard.check.properties.masks.patterns import built_in_pattern
from regard.check.properties.masks.query_groups import are_blocks_beside_others, is_last_segment

ONES = torch.ones(5, 5, dtype=torch.bool)
BLOCKS = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).bool()
WIDE = torch.ones(3, 5, dtype=torch.bool)


def of_windows(rows: int, columns: int, side: int, before: int, after: int) -> Tensor:
    """Of a grid: the keys of a window of a side, and some before and after it, in either direction."""
    row, column = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns

    def reached(place: Tensor) -> Tensor:
        first = place // side * side
        return (place[None] >= first[:, None] - before) & (place[None] < first[:, None] + side + after)

    return reached(row) & reached(column)


HALO = "windows, each with a halo of the keys around it"
NAMES: dict[str, tuple[Tensor, str]] = {
    "halos": (of_windows(6, 9, 3, 1, 1), HALO),
    "halos of a sequence": (of_windows(1, 8, 2, 1, 1), HALO),
    "more before than after": (of_windows(6, 9, 3, 1, 0), "unknown"),
    "a halo of another window": (of_windows(6, 9, 3, 1, 1).roll(3, 0), "unknown"),
    "full": (ONES, "full"),
    "causal": (ONES.tril(), "causal"),
    "window": (ONES.tril(1).triu(-1), "window"),
    "window, more before": (ONES.tril(1).triu(-2), "window"),
    "window of the last queries": (WIDE.tril(3).triu(1), "window"),
    "window of the first queries": (WIDE.tril(1).triu(-1), "window"),
    "causal window": (ONES.tril().triu(-2), "causal window"),
    "blocks": (BLOCKS, "blocks"),
    "groups of queries with keys of their own": (
        torch.block_diag(torch.ones(2, 3), torch.ones(2, 3)).bool().roll(1, 1),
        "each query sees the keys of its own group",
    ),
    "groups of unlike sizes": (torch.block_diag(torch.ones(2, 3), torch.ones(3, 3)).bool(), "unknown"),
    "causal blocks": (BLOCKS.tril(), "sparse causal"),
    "the last queries": (WIDE.tril(2), "causal"),
    "the first queries": (WIDE.tril(), "causal, from the first key on"),
    "causal, the first value copied": (ONES.tril() & (torch.arange(5) > 0)[:, None], "causal"),
    "itself where it sees no other": (
        ONES.tril(-1) | (ONES.cumsum(0) * ONES.cumsum(1) == 1),
        "causal, and a token sees itself only where it sees no other",
    ),
    "a prefix language model": (ONES.tril() | (torch.arange(5) < 3), "causal after a prefix that all see"),
    "a hole": ((ONES.tril() & (torch.arange(5) != 1)) | ONES.tril().diag().diag(), "sparse causal"),
    "each second key": (ONES.tril() & (torch.arange(5) % 2 != 1), BARRED),
    "each third key, the last one too": (
        torch.ones(9, 9, dtype=torch.bool).tril() & (torch.arange(9) % 3 != 2),
        BARRED,
    ),
}
WRONG: dict[str, tuple[Tensor, str]] = {
    "turned round": (ONES.triu(), "a query sees itself and later positions: the causal mask is the wrong way round"),
    "strictly": (ONES.triu(1), "a query sees later positions only: the causal mask is the wrong way round"),
    "not itself": (ONES.tril(-1), "a query does not see itself: it sees what is 1 or more positions before it"),
    "leak": (ONES.tril(1), "a query sees up to 1 later positions: the causal mask is off by 1"),
    "window of the future": (
        ONES.triu().tril(2),
        "a query sees itself and 2 later positions: the window is on the wrong side",
    ),
    "gap": (ONES.tril(-1).triu(-2), "a query does not see itself"),
    "a hole": (
        ONES.tril() & (torch.arange(5) != 1),
        "queries 1 do not see themselves: they see what is before them, and not all of that",
    ),
    "holes at uneven distances": (
        torch.ones(9, 9, dtype=torch.bool).tril() & ~torch.isin(torch.arange(9), torch.tensor([2, 3, 6])),
        "queries 2, 3, 6 do not see themselves: they see what is before them, and not all of that",
    ),
    "holes that a later query sees": (
        (ONES.tril() & (torch.arange(5) % 2 != 1)) | (ONES.tril(-4) | ONES.tril(-3)) & (torch.arange(5) == 1),
        "queries 1, 3 do not see themselves: they see what is before them, and not all of that",
    ),
    "causal by blocks": (ONES.tril() | BLOCKS, "query 0 sees a later position, 1"),
    "nothing": (~ONES, "no key has a weight"),
}


@pytest.mark.parametrize("name", NAMES)
def test_patterns_that_attention_has(name: str) -> None:
    allowed, wanted = NAMES[name]
    assert built_in_pattern(allowed) == (wanted, "")


@pytest.mark.parametrize("name", WRONG)
def test_patterns_that_are_mistakes(name: str) -> None:
    allowed, wanted = WRONG[name]
    assert built_in_pattern(allowed)[1] == wanted


def test_tokens_that_ask_are_in_blocks_beside_those_that_ask_elsewhere() -> None:
    """As the places of a video over time, beside tokens that see all (TimeSformer)."""
    asking, among = torch.arange(2, 8), torch.eye(3).repeat(2, 2).bool()
    allowed = torch.zeros(8, 8, dtype=torch.bool)
    allowed[2:] = torch.cat([torch.ones(6, 2).bool(), among], 1)
    assert are_blocks_beside_others(allowed, asking)
    assert not are_blocks_beside_others(allowed, torch.arange(8))
    causal = allowed.clone()
    causal[2:, 2:] &= torch.ones(6, 6).tril().bool()
    assert not are_blocks_beside_others(causal, asking)
    allowed[3, 0] = False
    assert not are_blocks_beside_others(allowed, asking)


def test_the_last_tokens_may_be_a_segment_of_their_own() -> None:
    segment = torch.zeros(6, 6, dtype=torch.bool)
    segment[3:, 3:] = True
    assert is_last_segment(segment, torch.arange(3, 6))
    assert not is_last_segment(segment, torch.arange(6))
    segment[3, 4] = False
    assert not is_last_segment(segment, torch.arange(3, 6))
