"""Attention that its authors left without a scale, or with a number that they chose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import drawn
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, invocations

X = drawn(2, 4, 8, seed=0)
MATRIX = drawn(8, 8, seed=2) * 8**-0.5


def scale_of(call: Invocation) -> Finding:
    (found,) = [each for each in analyze(call).findings if each.step == "scale"]
    return found


def times_a_chosen_number(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    return ((q * 0.06) @ k.mT).softmax(-1) @ v


def divided_by_a_root(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    return ((q * 0.125) @ k.mT).softmax(-1) @ v


def times_a_tenth(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    return ((q * 0.1) @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "kind"),
    [(times_a_chosen_number, "design"), (divided_by_a_root, "violation"), (times_a_tenth, "violation")],
)
def test_a_number_with_one_digit_is_a_temperature_that_somebody_chose(function: Any, kind: str) -> None:
    assert scale_of(tokens_call(function, X)).kind == kind


def keys_are_values(queries: Tensor, values: Tensor) -> Tensor:
    return (queries @ values.mT).softmax(-1) @ values


def projected_twice(queries: Tensor, values: Tensor) -> Tensor:
    return keys_are_values(queries @ MATRIX, values @ MATRIX)


@pytest.mark.parametrize(("function", "kind"), [(keys_are_values, "design"), (projected_twice, "violation")])
def test_values_that_are_their_own_keys_are_read_without_a_scale(function: Any, kind: str) -> None:
    inputs = {"queries": X, "values": drawn(2, 5, 8, seed=3)}
    assert scale_of(next(invocations(function, args={}, inputs=inputs))).kind == kind


def step_of_a_decoder(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query[(Bs), B, D], key[B, T, D], value[B, T, D]"""
    scores = query.unsqueeze(-2) @ key.mT
    return (scores.softmax(-1) @ value).squeeze(-2)


def step_of_a_transformer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One step of a transformer: query[B, D], key[B, T, D], value[B, T, D]"""
    return step_of_a_decoder(query, key, value)


@pytest.mark.parametrize(("function", "kind"), [(step_of_a_decoder, "design"), (step_of_a_transformer, "violation")])
def test_a_state_of_a_decoder_asks_without_a_scale(function: Any, kind: str) -> None:
    found = next(invocations(function, args={}))
    assert found.streams[0].token_axes == ()
    assert scale_of(found).kind == kind


class Scored(nn.Module):
    def __init__(self, width: int, score: str) -> None:
        super().__init__()
        self.score = score
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.weight = nn.Parameter(torch.empty(width, width).uniform_(-0.3, 0.3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.query(x), self.key(x)
        q = q / q.shape[-1] ** 0.5 if self.score == "scaled_dot_product" else q @ self.weight
        return (q @ k.mT).softmax(-1) @ k


class Inheriting(Scored):
    pass


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (Scored(8, "bi_linear"), "design"),
        (Inheriting(8, "general"), "design"),
        (Scored(8, "windowed"), "violation"),
        (Scored(8, "scaled_dot_product"), "holds"),
    ],
)
def test_bilinear_scores_were_chosen_beside_scaled_ones(module: nn.Module, kind: str) -> None:
    assert scale_of(next(invocations(module, args={}))).kind == kind


def scaling_in_a_comment(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    # q /= 8 ** 0.5
    return (q @ k.mT).softmax(-1) @ v


def formula_in_a_comment(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    # scores = q @ k.T / sqrt(d)
    return (q @ k.mT).softmax(-1) @ v


def comment_of_another(x: Tensor) -> Tensor:
    q, k, v = (x @ drawn(8, 24, seed=0)).chunk(3, -1)
    # picture /= 255
    return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "kind"),
    [(scaling_in_a_comment, "design"), (formula_in_a_comment, "violation"), (comment_of_another, "violation")],
)
def test_a_statement_that_scales_was_commented_out(function: Any, kind: str) -> None:
    assert scale_of(tokens_call(function, X)).kind == kind


class ReadByTheLast(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.turn, self.value = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.turn(x)
        return ((turned[:, -1:] @ turned.mT).softmax(-1) @ x).squeeze(1)


class ValuesReadByTheLast(ReadByTheLast):
    def forward(self, x: Tensor) -> Tensor:
        turned = self.turn(x)
        return ((turned[:, -1:] @ turned.mT).softmax(-1) @ self.value(x)).squeeze(1)


@pytest.mark.parametrize(("module", "kind"), [(ReadByTheLast(8), "design"), (ValuesReadByTheLast(8), "violation")])
def test_the_last_token_reads_the_others_as_they_are_without_a_scale(module: nn.Module, kind: str) -> None:
    assert scale_of(next(invocations(module, args={}))).kind == kind


def test_keys_without_any_weight_are_hidden_by_no_mask_where_scores_are_large() -> None:
    module = ReadByTheLast(64)
    module.turn.weight.data.mul_(4)
    patterns = [each for each in analyze(next(invocations(module, args={}))).findings if each.step == "mask"]
    assert [each.kind for each in patterns] == ["absent"]
