"""Results of `masked_fill` that are not kept."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from property_cases import drawn, of_x
from regard.check.properties.masks.lost_fills import faint_fill_line_findings, lost_fill_line_findings
from regard.check.properties.masks.unread import lost_fill_findings
from regard.check.roles.influence import record_invocation

W_Q, W_K = (drawn(8, 8, seed=seed) / 3 for seed in (40, 41))


def pointed(x: Tensor, hide: Callable[[Tensor, Tensor], Tensor | None]) -> Tensor:
    """Weights of tokens by what a sum with the first one says, of which the first is no candidate."""
    scores = torch.tanh(x @ W_Q + x[:, :1] @ W_K).sum(-1)
    hidden = (torch.arange(x.shape[1]) == 0).expand(scores.shape)
    kept = hide(scores, hidden)
    return (scores if kept is None else kept).softmax(-1)


def kept(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, -torch.inf)


def written(scores: Tensor, hidden: Tensor) -> None:
    scores.masked_fill_(hidden, -torch.inf)


def lost(scores: Tensor, hidden: Tensor) -> None:
    scores.masked_fill(hidden, -torch.inf)


def nothing_hidden(scores: Tensor, hidden: Tensor) -> None:
    looked_at = scores.masked_fill(hidden & ~hidden, -torch.inf)
    assert looked_at.shape == scores.shape


def nothing_hidden_in_this_call(scores: Tensor, hidden: Tensor) -> None:
    scores.masked_fill(hidden & ~hidden, 0.0)


def said_of(hide: Callable[[Tensor, Tensor], Tensor | None]) -> list[str]:
    run = record_invocation(of_x(lambda x: pointed(x, hide)), lines=True)
    return [each.message for each in lost_fill_findings(run)]


@pytest.mark.parametrize("hide", [kept, written, nothing_hidden])
def test_what_is_kept_or_hides_nothing_is_right(hide: Callable[[Tensor, Tensor], Tensor | None]) -> None:
    assert said_of(hide) == []


def test_a_result_that_is_not_kept_hides_nothing() -> None:
    (said,) = said_of(lost)
    assert said.startswith("what masked_fill returns is not kept")


def test_a_result_without_a_name_is_lost_whatever_the_call_hides() -> None:
    (said,) = said_of(nothing_hidden_in_this_call)
    assert said.startswith("what masked_fill returns is not kept")


def hidden_when_told(scores: Tensor, future: Tensor, how: str = "") -> Tensor:
    if how == "causal":
        scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1)


def kept_when_told(scores: Tensor, future: Tensor, how: str = "") -> Tensor:
    if how == "causal":
        scores = scores.masked_fill(future, -torch.inf)
    elif how == "in place":
        scores.masked_fill_(future, -torch.inf)
    return scores.softmax(-1)


def cut_when_told(scores: Tensor, how: str = "") -> Tensor:
    if how == "causal":
        torch.tril(scores)
    return scores


def cut_into_another(scores: Tensor, how: str = "") -> Tensor:
    if how == "causal":
        torch.tril(scores, out=scores)
    return scores


@pytest.mark.parametrize("function", [hidden_when_told, cut_when_told])
def test_a_line_that_keeps_no_result_is_found_where_no_call_goes_by_it(function: Callable[..., Tensor]) -> None:
    (found,) = lost_fill_line_findings(function)
    assert found.property == "mask-read"
    assert found.location is not None
    assert re.search(r"masked_fill\(|tril\(", found.location.text)


@pytest.mark.parametrize("function", [kept_when_told, cut_into_another])
def test_a_line_that_keeps_its_result_is_right(function: Callable[..., Tensor]) -> None:
    assert list(lost_fill_line_findings(function)) == []


def faint_where_told(scores: Tensor, hidden: Tensor, diagonal: bool = False) -> Tensor:
    if diagonal:
        scores[..., hidden] = -1e-9
    return scores


def faint_by_a_method(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, value=-1e-9)


def filled_where_told(scores: Tensor, hidden: Tensor, diagonal: bool = False) -> Tensor:
    if diagonal:
        scores[..., hidden] = -1e9
    return torch.where(hidden, 1e-9, scores.clamp(min=-1e-9))


@pytest.mark.parametrize("function", [faint_where_told, faint_by_a_method])
def test_a_line_that_fills_with_nearly_zero_hides_nothing(function: Callable[..., Tensor]) -> None:
    (found,) = faint_fill_line_findings(function)
    assert found.property == "blocked-scores"
    assert found.location is not None
    assert "-1e-9" in found.location.text


def test_a_line_that_fills_with_a_large_number_is_right() -> None:
    assert list(faint_fill_line_findings(filled_where_told)) == []
