"""Vectors of token ids, beside keys and values that a convolution makes of several tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor
from torch.nn.functional import conv1d

from property_cases import WIDTH, drawn
from property_cases.token_id_cases import TABLE, of_ids
from regard.check.properties.analyze import analyze

KERNELS = [drawn(WIDTH, WIDTH, 3, seed=40 + number) for number in range(3)]


def neighbours(ids: Tensor, number: int) -> Tensor:
    """Each token with the one before it and the one after it."""
    return conv1d(TABLE[ids].mT, KERNELS[number], padding=1).mT


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


def queries_of_the_table(ids: Tensor) -> Tensor:
    return attended(TABLE[ids], neighbours(ids, 0), neighbours(ids, 1))


def queries_of_neighbours(ids: Tensor) -> Tensor:
    return attended(*(neighbours(ids, number) for number in range(3)))


@pytest.mark.parametrize("function", [queries_of_the_table, queries_of_neighbours])
def test_the_same_id_twice_is_two_tokens_and_not_two_heads(function: Callable[[Tensor], Tensor]) -> None:
    call = of_ids(function)
    ids = call.arguments["target"]
    ids[:, 3] = ids[:, 1]
    found = analyze(call)
    assert (found.violations, found.missing) == ([], [])
