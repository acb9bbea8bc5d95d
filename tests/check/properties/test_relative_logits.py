"""Learned vectors that queries are multiplied by: one for each distance, as in Transformer-XL; not one for each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from property_cases import drawn, joined, of_module, of_q_k_v, of_x, split
from regard.check.properties.analysis import Analysis
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

VECTORS = drawn(5, 4, seed=6)
DISTANCES = torch.arange(3)[:, None] - torch.arange(3)


def with_logits(logits: Callable[[Tensor], Tensor]) -> Analysis:
    return analyze(of_q_k_v(lambda q, k, v: ((q @ k.mT + logits(q)) / 2).softmax(-1) @ v))


def of_the_distance(q: Tensor) -> Tensor:
    places = (DISTANCES + 2).expand(2, 2, 3, 3)
    return (q @ VECTORS.T).gather(-1, places)


def test_vectors_of_the_distance_are_a_design() -> None:
    analysis = with_logits(of_the_distance)
    assert analysis.complete
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["relative-logits"]


def test_scores_that_are_all_hidden_tell_no_distance() -> None:
    def of_padding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT + of_the_distance(q)) / 2
        hidden = scores.masked_fill(torch.ones(3, 3, dtype=torch.bool), -torch.inf)
        weights = torch.cat([hidden, torch.zeros(2, 2, 3, 1, dtype=q.dtype)], -1).softmax(-1)
        return weights @ torch.cat([v, torch.zeros_like(v[:, :, :1])], 2)

    assert not any(each.property == "relative-logits" for each in analyze(of_q_k_v(of_padding)).findings)


def skewed_for_a_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Music Transformer's: above the diagonal the skewing leaves the logits of the next query."""
    logits = torch.nn.functional.pad(q @ VECTORS[:3].T, (1, 0))
    scores = (q @ k.mT + logits.view(2, 2, 4, 3)[:, :, 1:]) / 2
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def test_what_a_skewing_leaves_above_the_diagonal_is_right_where_a_mask_may_hide_it() -> None:
    analysis = analyze(of_q_k_v(skewed_for_a_mask, masks=("mask",)))
    (found,) = [each for each in analysis.findings if each.property == "positions-open"]
    assert analysis.violations == []
    assert "the query of token 1 is added to the score of query 0 and key 2, a later one" in found.message
    (told,) = analyze(of_q_k_v(lambda q, k, v: skewed_for_a_mask(q, k, v))).violations
    assert told.property == "logits-of-the-query"


def skewed_behind(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The same with the zeros behind each row: a token itself takes one of them, and no key the first vector."""
    logits = torch.nn.functional.pad(q @ VECTORS[:3].T, (0, 1))
    scores = (q @ k.mT + logits.view(2, 2, 4, 3)[:, :, 1:]) / 2
    if mask is not None:
        scores = scores.masked_fill(mask, -torch.inf)
    return scores.softmax(-1) @ v


def test_each_key_that_a_mask_leaves_has_a_vector_of_its_distance() -> None:
    (told,) = analyze(of_q_k_v(skewed_behind, masks=("mask",))).violations
    assert told.property == "vector-of-each-distance"
    assert "of the query's own token takes the padding" in told.message


def skewed_beside_padding(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
    return skewed_for_a_mask(q, k, v, None if padding is None else ~padding[:, None, None, :])


def test_a_mask_of_padding_hides_nothing_of_what_a_skewing_leaves_above_the_diagonal() -> None:
    (told,) = analyze(of_q_k_v(skewed_beside_padding, masks=("padding",))).violations
    assert told.property == "logits-of-the-query"

    def with_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        wide = None if mask is None else mask.expand(2, 1, 3, 3)
        return skewed_for_a_mask(q, k, v, wide)

    assert analyze(of_q_k_v(with_queries, masks=("mask",))).violations == []


def test_a_mask_that_has_to_be_handed_over_may_hide_later_keys_where_it_has_a_row_for_each_query() -> None:
    def of_keys(q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor) -> Tensor:
        return skewed_beside_padding(q, k, v, padding)

    def of_both(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor) -> Tensor:
        return skewed_for_a_mask(q, k, v, mask)

    open_padding, open_mask = torch.zeros(2, 3, dtype=torch.bool), torch.ones(3, 3, dtype=torch.bool)
    for function, name, value, expected in (
        (of_keys, "padding", open_padding, ["logits-of-the-query"]),
        (of_both, "mask", open_mask, []),
    ):
        call = of_q_k_v(function, masks=(name,))
        call.arguments[name] = value
        assert [each.property for each in analyze(call).violations] == expected


def sinusoids(places: Tensor) -> Tensor:
    angles = places[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    return torch.cat([angles.sin(), angles.cos()], -1)


@pytest.mark.parametrize(
    ("first", "expected"), [(-3, []), (0, ["positions-relative"]), (-1, ["positions-relative"]), (1, [])]
)
def test_a_key_of_the_query_s_own_token_takes_the_sinusoids_of_no_distance(first: int, expected: list[str]) -> None:
    """From 1 on there is none of no distance: what else is meant by the table is not known."""

    def of_distances(x: Tensor) -> Tensor:
        vectors = sinusoids(torch.arange(first, first + 7)) @ drawn(4, 4, seed=12)
        tokens = torch.arange(4)
        logits = (split(x) @ vectors.T).gather(-1, (tokens[:, None] - tokens + 3).expand(2, 2, 4, 4))
        return joined(((split(x) @ split(x).mT + logits) / 2).softmax(-1) @ split(x))

    assert [each.property for each in analyze(of_x(of_distances)).violations] == expected


def test_sinusoids_of_the_place_of_each_key_are_of_no_distance() -> None:
    def of_places(x: Tensor) -> Tensor:
        logits = split(x) @ (sinusoids(torch.arange(4)) @ drawn(4, 4, seed=12)).T
        return joined(((split(x) @ split(x).mT + logits) / 2).softmax(-1) @ split(x))

    designs = [each.property for each in analyze(of_x(of_places)).findings if each.kind in ("violation", "design")]
    assert "absolute-logits" in designs
    assert "positions-relative" not in designs


PLACES = drawn(8, 4, seed=7)


@pytest.mark.parametrize(
    "logits",
    [lambda q: q @ VECTORS[:3].T, lambda q: q @ PLACES[-3:].T],
    ids=["as many as distances", "the last of them"],
)
def test_vectors_of_distances_that_are_taken_by_the_key_s_place_are_not_relative(logits: Any) -> None:
    analysis = with_logits(logits)
    assert [each.property for each in analysis.violations] == ["positions-relative"]


@pytest.mark.parametrize(
    "logits",
    [lambda q, k: q @ PLACES[:3].T, lambda q, k: (k @ PLACES[:3].T).mT, lambda q, k: q @ PLACES[torch.arange(3)].T],
    ids=["of keys", "of queries", "looked up"],
)
def test_vectors_of_the_place_of_one_of_the_two_are_absolute_positions(logits: Any) -> None:
    analysis = analyze(of_q_k_v(lambda q, k, v: ((q @ k.mT + logits(q, k)) / 2).softmax(-1) @ v))
    assert analysis.complete
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["absolute-logits"]


def test_what_is_written_into_the_scores_is_added_as_well() -> None:
    def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores += of_the_distance(q)
        return (scores / 2).softmax(-1) @ v

    assert [each.property for each in analyze(of_q_k_v(in_place)).designs] == ["relative-logits"]


def before_a_query(q: Tensor, k: Tensor, v: Tensor, vectors: Tensor) -> Tensor:
    """The distances before a query alone have vectors: its own token has none, on purpose."""
    tokens = torch.arange(3)
    place = (tokens[:, None] - tokens - 1).clamp(0).expand(2, 2, 3, 3)
    logits = (q @ vectors.T).gather(-1, place).masked_fill(DISTANCES < 1, 0.0)
    return ((q @ k.mT + logits) / 2).masked_fill(DISTANCES < 0, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("count", [2, 3])
def test_a_token_itself_may_have_no_vector(count: int) -> None:
    analysis = analyze(of_q_k_v(lambda q, k, v: before_a_query(q, k, v, PLACES[:count])))
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["relative-logits"]


def shifted(q: Tensor, vectors: Tensor, *, hides: bool) -> Tensor:
    """One vector for each distance back, brought to its key by a shift: later keys get what is left of the next row."""
    size = q.shape[-2]
    logits = q @ vectors.T
    if hides:
        logits = logits * torch.ones(size, size, dtype=q.dtype).triu().flip(0)
    return torch.nn.functional.pad(logits, (1, 0)).reshape(*q.shape[:2], size + 1, size)[..., 1:, :]


def test_what_a_shift_multiplies_by_zero_is_not_added_to_a_score() -> None:
    analysis = with_logits(lambda q: shifted(q, PLACES[:3], hides=True))
    assert analysis.complete
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["relative-logits"]


def test_without_a_mask_a_shift_adds_what_is_of_the_next_query() -> None:
    analysis = with_logits(lambda q: shifted(q, PLACES[:3], hides=False))
    assert [each.property for each in analysis.violations] == ["logits-of-the-query"]


PAIRS = drawn(2, 1, 3, 3, 4, seed=8)


def given_vectors(q: Tensor, k: Tensor, v: Tensor, *, pairs: Any) -> Tensor:
    (vectors,) = pairs
    return ((q @ k.mT + (vectors @ q[..., None]).squeeze(-1)) / 2).softmax(-1) @ v


def test_vectors_of_each_pair_may_be_handed_over() -> None:
    call = of_q_k_v(given_vectors)
    call.arguments["pairs"] = (PAIRS,)
    analysis = analyze(call)
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["given-logits"]


def test_vectors_of_each_pair_are_no_positions_where_they_are_none_of_the_call_s() -> None:
    analysis = with_logits(lambda q: (PAIRS @ q[..., None]).squeeze(-1))
    assert [each.property for each in analysis.violations] == ["positions-relative"]


def with_given_places(q: Tensor, k: Tensor, v: Tensor, *, relative_position_embeddings: Tensor) -> Tensor:
    logits = q @ (2 * relative_position_embeddings).T
    return ((q @ k.mT + logits) / 2).softmax(-1) @ v


def with_its_places(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Relative positions, as it says, of a table of its own."""
    relative_position_embeddings = PLACES[:3]
    return ((q @ k.mT + q @ relative_position_embeddings.T) / 2).softmax(-1) @ v


def test_vectors_of_the_key_s_place_that_are_handed_over_are_the_caller_s() -> None:
    call = of_q_k_v(with_given_places)
    call.arguments["relative_position_embeddings"] = PLACES[:3]
    analysis = analyze(call)
    assert [each.property for each in analysis.findings if each.kind in ("violation", "design")] == ["given-logits"]
    (told,) = analyze(of_q_k_v(with_its_places)).violations
    assert told.property == "positions-relative"


class WithValuesOfDistances(nn.Module):
    """Two layers whose weights read learned vectors of the distances beside the values (Shaw et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(8, 24, bias=False) for _ in range(2))
        self.values = nn.Parameter(torch.randn(7, 4))

    def forward(self, x: Tensor) -> Tensor:
        distances = torch.arange(4)[:, None] - torch.arange(4) + 3
        for each in self.qkv:
            q, k, v = (split(part) for part in each(x).chunk(3, -1))
            weights = (q @ k.mT / 2).softmax(-1)
            x = x + joined(weights @ v + torch.einsum("bhij,ijd->bhid", weights, self.values[distances]))
        return x


def test_what_weights_read_of_distances_in_a_later_layer_is_none_of_an_earlier_one() -> None:
    assert analyze(of_module(WithValuesOfDistances)).violations == []


# Tokens of a map of features, row by row. -----------------------------------------------------------------------------


def of_a_map(q: Tensor, columns: int, before: int = 0, *, crossed: bool = False) -> Tensor:
    """What is added by the distance along both sides, as in MViTv2; or by a row of one and a column of the other."""
    places = torch.arange(q.shape[2] - before)
    rows, sides = places // columns, places % columns
    apart = [one[:, None] - other + 8 for one, other in ((rows, sides if crossed else rows), (sides, sides))]
    tables = [drawn(17, 4, seed=seed) for seed in (8, 9)]
    asks = q[:, :, before:]
    logits = [torch.einsum("bhqd,qkd->bhqk", asks, table[each]) for table, each in zip(tables, apart, strict=True)]
    return torch.nn.functional.pad(logits[0] + logits[1], (before, 0, before, 0))


def of_tokens_of_a_map(rows: int, columns: int, before: int, *, crossed: bool) -> list[str]:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT + of_a_map(q, columns, before, crossed=crossed)) / 2).softmax(-1) @ v

    given = {name: drawn(2, 2, rows * columns + before, 4, seed=seed) for seed, name in enumerate("qkv")}
    streams = [Stream(name, name, 0, (2,), 1) for name in given]
    analysis = analyze(Invocation(function, given, [*given], streams))
    return [each.property for each in analysis.findings if each.kind in ("violation", "design")]


@pytest.mark.parametrize(("rows", "columns", "before"), [(3, 3, 0), (3, 3, 1), (2, 6, 0), (5, 2, 1)])
def test_vectors_of_the_distance_in_a_map_are_a_design(rows: int, columns: int, before: int) -> None:
    assert of_tokens_of_a_map(rows, columns, before, crossed=False) == ["relative-logits"]
    assert of_tokens_of_a_map(rows, columns, before, crossed=True) == ["positions-relative"]


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 3)])
def test_vectors_of_the_rows_and_of_the_columns_of_keys_are_absolute_positions(rows: int, columns: int) -> None:
    """Of 3 rows and 5 columns there are as many vectors of columns as there are distances of rows."""
    of_rows, of_columns = drawn(rows, 1, 4, seed=8), drawn(1, columns, 4, seed=9)

    def function(x: Tensor) -> Tensor:
        flat = x.flatten(1, 2)
        logits = flat @ (of_rows + of_columns).flatten(0, 1).T
        return ((flat @ flat.mT + logits).softmax(-1) @ flat).view_as(x)

    call = Invocation(function, {"x": drawn(2, rows, columns, 4, seed=1)}, ["x"], [Stream("x", "x", 0, (1, 2), None)])
    designs = [each.property for each in analyze(call).findings if each.kind in ("violation", "design")]
    assert "absolute-logits" in designs
    assert "positions-relative" not in designs
