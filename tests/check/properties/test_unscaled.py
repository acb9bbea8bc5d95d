"""Attention that its authors left without a scale, or with a number that they chose."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

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
