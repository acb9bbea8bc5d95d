"""Tables of positions: what is wrong with them that the scores of one call do not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from property_cases import WIDTH, drawn, joined, of_module, of_q_k_v, of_x, split
from property_cases.position_cases import keys_rotated_the_other_way, rotated
from property_cases.position_table_cases import LATER, PLACES, attended, last_rows
from regard.check.properties.analyze import analyze


def messages(function: Callable[[Tensor], Tensor]) -> list[str]:
    return [each.message for each in analyze(of_x(function)).violations]


ANGLES = torch.arange(4.0).double()[:, None] * torch.tensor([1.0, 0.1]).double().repeat(2)


def rotary(x: Tensor, of_read: bool, is_used: bool) -> Tensor:
    q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / WIDTH**0.5)) for seed in (1, 2, 3))
    if not of_read:
        turned = [rotated(each, ANGLES) for each in (q, k)]
        q, k = turned if is_used else (q, k)
    read = (q @ k.mT / 2).softmax(-1) @ v
    return joined(rotated(read, ANGLES) if of_read else read)


def test_what_is_rotated_has_to_be_a_query_or_a_key() -> None:
    said = "what is rotated by its position is neither a query nor a key: for the scores the same token is the same "
    said += "everywhere"
    assert messages(lambda x: rotary(x, of_read=True, is_used=True)) == [said]
    assert messages(lambda x: rotary(x, of_read=False, is_used=False)) == [said]
    assert messages(lambda x: rotary(x, of_read=False, is_used=True)) == []


def test_keys_that_are_rotated_to_the_other_side_are_told_so() -> None:
    (found,) = analyze(of_q_k_v(keys_rotated_the_other_way)).violations
    assert found.message.startswith("keys are rotated to the other side than queries, by the same angles")


class LooksUp(nn.Module):
    """Two tables: of positions, and of what kind a token is."""

    def __init__(self, *, same: bool = False) -> None:
        super().__init__()
        self.position_embedding, self.token_type = nn.Embedding(16, WIDTH), nn.Embedding(2, WIDTH)
        self.same = same

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        places = torch.full_like(places, x.shape[1] - 1) if self.same else places
        return attended(x + self.position_embedding(places) + self.token_type(torch.zeros_like(places)))


def test_each_token_has_a_row_of_its_own() -> None:
    assert analyze(of_module(LooksUp)).violations == []
    (found,) = analyze(of_module(lambda: LooksUp(same=True))).violations
    assert found.message == "the table of positions is looked up at 3 for all tokens"


def at_queries_and_keys(x: Tensor) -> Tensor:
    """Added to both, and not to values."""
    at = x + PLACES[: x.shape[1]]
    q, k = (split(each @ (drawn(WIDTH, WIDTH, seed=seed) / WIDTH**0.5)) for each, seed in ((at, 1), (at, 2)))
    return joined((q @ k.mT / 2).softmax(-1) @ split(x @ drawn(WIDTH, WIDTH, seed=3)))


def added_again_after_a_norm(x: Tensor) -> Tensor:
    """As where each layer adds its positions."""
    x = torch.nn.functional.layer_norm(x + PLACES[: x.shape[1]], (WIDTH,))
    return attended(x + PLACES[: x.shape[1]])


def two_tables(x: Tensor) -> Tensor:
    return attended(x + PLACES[: x.shape[1]] + PLACES[4 : 4 + x.shape[1]])


@pytest.mark.parametrize("function", [at_queries_and_keys, added_again_after_a_norm, two_tables])
def test_tables_may_be_added_in_several_places(function: Callable[[Tensor], Tensor]) -> None:
    assert messages(function) == []


def scaled_by_the_length(x: Tensor) -> Tensor:
    """Queries are longer, the more tokens there are."""
    count = x.shape[1]
    q, k, v = (split(x @ (drawn(WIDTH, WIDTH, seed=seed) / WIDTH**0.5)) for seed in (1, 2, 3))
    scores = (q * torch.tensor(count).log()) @ k.mT / 2
    return joined(scores.masked_fill(LATER[:count, :count], -torch.inf).softmax(-1) @ v)


class FromTheLast(nn.Module):
    """Positions are counted from the last token."""

    def forward(self, x: Tensor) -> Tensor:
        return attended(x + PLACES[: x.shape[1]].flip(0), causal=True)


def test_positions_from_the_end_are_wrong_where_later_tokens_are_hidden() -> None:
    (found,) = messages(last_rows)
    assert found.startswith("of 4 tokens the first 3 have other queries and keys than of 3")
    assert messages(lambda x: attended(x + PLACES[-x.shape[1] :])) == []
    assert messages(FromTheLast()) == []
    assert "positions" not in {each.step for each in analyze(of_x(scaled_by_the_length)).violations}
