"""Scores that are added over the rows of a grid are named, not blamed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import drawn
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream


def names(call: Invocation) -> list[tuple[str, str]]:
    analysis = analyze(call, masks=True)
    assert not analysis.missing
    return [(each.kind, each.property) for each in analysis.findings if each.kind in ("violation", "design")]


def grid_call(rows_apart: int, read: str = "bij,brjd->brid") -> Invocation:
    """Of (samples, rows, columns, width)."""

    def attend(x: Tensor) -> Tensor:
        q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
        weights = torch.einsum("brid,brjd->bij", q, k.roll(rows_apart, 1)).softmax(-1)
        return torch.einsum(read, weights, v)

    call = tokens_call(attend, drawn(2, 3, 4, 8, seed=0))
    call.streams = [Stream("x", "x", 0, (1, 2))]
    return call


def test_weights_of_tied_rows_are_summed_over_the_keys() -> None:
    assert ("violation", "softmax-over-keys") in names(grid_call(0, "bji,brjd->brid"))


def test_scores_that_are_added_over_rows_are_tied() -> None:
    assert names(grid_call(0)) == [("design", "tied-rows")]


def weighted_rows(axis: int, *, of_queries: bool = False) -> Invocation:
    """Each row of the queries has a weight of its own, of a softmax over some axis (RoseTTAFold)."""

    def attend(x: Tensor) -> Tensor:
        q, k, v, asked = (x @ drawn(8, 8, seed=seed) for seed in range(4))
        shares = torch.einsum("bid,brid->bri", asked[:, 0], k).softmax(axis)[..., None]
        q = q.softmax(axis) if of_queries else q * shares
        return torch.einsum("bij,brjd->brid", torch.einsum("brid,brjd->bij", q, k).softmax(-1), v)

    call = tokens_call(attend, drawn(2, 3, 4, 8, seed=0))
    call.streams = [Stream("x", "x", 0, (1, 2))]
    return call


def test_tied_rows_may_have_weights_of_their_own() -> None:
    assert names(weighted_rows(1)) == [("design", "tied-rows")]


def test_queries_that_are_a_softmax_over_the_rows_are_not_tied() -> None:
    assert ("violation", "query-of-one-token") in names(weighted_rows(1, of_queries=True))


class TiedRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.einsum("brid,brjd->bij", self.q(x), self.k(x)).softmax(-1)
        return self.out(self.read(torch.einsum("bij,brjd->brid", weights, self.v(x)), x))

    def read(self, read: Tensor, x: Tensor) -> Tensor:
        return read


class TiedRowsThatReadNothing(TiedRows):
    def read(self, read: Tensor, x: Tensor) -> Tensor:
        return x


def test_of_tied_rows_what_is_read_has_to_be_used() -> None:
    for kind, found in ((TiedRows, set()), (TiedRowsThatReadNothing, {"projection-used"})):
        call = grid_call(0)
        call.target = kind().double()
        assert {each.property for each in analyze(call).violations} == found


def test_scores_of_a_row_and_the_next_one_are_not_tied() -> None:
    assert ("violation", "query-of-one-token") in names(grid_call(1))


def flagged_rows(*, of_past: bool) -> list[tuple[str, str]]:
    """What is said of a flag of tied rows that hides later columns, or earlier ones."""

    def attend(x: Tensor, causal: bool = False) -> Tensor:
        q, k, v = (x @ drawn(8, 8, seed=seed) for seed in range(3))
        scores = torch.einsum("brid,brjd->bij", q, k)
        seen = torch.ones_like(scores).tril() if of_past else torch.ones_like(scores).triu()
        weights = (scores.masked_fill(seen == 0, -torch.inf) if causal else scores).softmax(-1)
        return torch.einsum("bij,brjd->brid", weights, v)

    call = tokens_call(attend, drawn(2, 3, 4, 8, seed=0))
    call.streams, call.causal_flags = [Stream("x", "x", 0, (1, 2))], ["causal"]
    return [(each.kind, each.property) for each in analyze(call, masks=True).findings if "causal=True" in each.message]


def test_a_flag_of_tied_rows_hides_later_columns() -> None:
    assert flagged_rows(of_past=True) == [("holds", "mask-flag")]
    assert flagged_rows(of_past=False) == [("violation", "mask-pattern")]
