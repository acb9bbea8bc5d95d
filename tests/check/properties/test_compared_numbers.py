"""Numbers of tokens that are compared with one another, as of the texts of a row: what is alike sees what is alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, invocations
from regard.check.target.compared_numbers import is_compared_with_itself

COMPARED = {
    "same = row[:, :, None] == row[:, None, :]": True,
    "mine = row.unsqueeze(1)\nother = row.unsqueeze(2)\napart = mine != other": True,
    "same = row.unsqueeze(-1).eq(row.unsqueeze(-2)) & before": True,
    "same = row[:, None] == row": True,
    "hidden = row == 0": False,
    "same = row[:, None] == row[:, None]": False,
    "same = row[:, None] == other[None]": False,
    "before = row[:, None] >= row[None]": False,
}


@pytest.mark.parametrize("text", COMPARED)
def test_whether_each_number_is_compared_with_each_other_one(text: str) -> None:
    assert is_compared_with_itself(text, "row") is COMPARED[text]


def later(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1]).triu(1) == 1


def attended(x: Tensor, hidden: Tensor) -> Tensor:
    return (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ x


def by_two_axes(x: Tensor, segment_ids: Tensor) -> Tensor:
    return attended(x, later(x) | (segment_ids[:, :, None] != segment_ids[:, None, :]))


def by_two_lines(x: Tensor, row_part: Tensor) -> Tensor:
    mine = row_part.unsqueeze(2)
    other = row_part.unsqueeze(1)
    return attended(x, later(x) | ~(mine == other))


def by_a_method(x: Tensor, part: Tensor) -> Tensor:
    return attended(x, ~part[..., None].eq(part[:, None]))


def later_alike_seen(x: Tensor, segment_ids: Tensor) -> Tensor:
    return attended(x, later(x) & (segment_ids[:, :, None] != segment_ids[:, None, :]))


def of_the_next_key(x: Tensor, row_part: Tensor) -> Tensor:
    same = row_part[..., None] == row_part[:, None]
    return attended(x, ~(same | same.roll(1, -1)))


def with_a_bias(x: Tensor, part: Tensor) -> Tensor:
    """Tokens of one part are nearer to each other."""
    near = part[..., None] == part[:, None]
    return (x @ x.mT / x.shape[-1] ** 0.5 + 0.5 * near).softmax(-1) @ x


def judged(function: Callable[..., Tensor]) -> tuple[Invocation, list[Finding]]:
    call = next(invocations(function, args={}))
    return call, [each for each in analyze(call, masks=True).findings if each.step == "mask"]


@pytest.mark.parametrize("function", [by_two_axes, by_two_lines, by_a_method])
def test_tokens_of_one_number_see_one_another_alone(function: Callable[..., Tensor]) -> None:
    call, found = judged(function)
    assert len(call.documents) == 1
    assert f"{call.documents[0]} keeps the texts of a row apart" in [each.message for each in found]
    assert not [each for each in found if each.kind == "violation"]


@pytest.mark.parametrize("function", [later_alike_seen, of_the_next_key])
def test_tokens_of_other_numbers_that_are_seen_are_found(function: Callable[..., Tensor]) -> None:
    assert [each for each in judged(function)[1] if each.kind == "violation"]


def test_a_bias_of_tokens_that_are_alike_hides_none() -> None:
    call, found = judged(with_a_bias)
    assert len(call.documents) == 1
    assert not [each for each in found if each.kind == "violation"]
