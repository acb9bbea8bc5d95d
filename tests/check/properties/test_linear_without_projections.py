"""Linear attention whose queries, keys and values are what was handed over: a softmax is the first that takes them."""

from __future__ import annotations

from functools import partial

import pytest
from torch import Tensor

from property_cases import drawn, of_x
from regard.check.properties.analyze import analyze
from regard.check.target import Invocation, Stream

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


def read(tokens: Tensor, context: Tensor, *, keys: int = 1, queries: int = -1, turned: bool = False) -> Tensor:
    """What tokens read of a context, by softmaxes of both over some axis; and of the context by tokens, turned."""
    asking, asked = (context, tokens) if turned else (tokens, context)
    return asking.softmax(queries) @ (asked.softmax(keys).mT @ asked.tanh())


def of_two(keys: int = 1, queries: int = -1, *, turned: bool = False) -> Invocation:
    call = of_x(partial(read, keys=keys, queries=queries, turned=turned))
    call.arguments = {"tokens": drawn(3, 5, 8, seed=0), "context": drawn(3, 5, 8, seed=1)}
    call.positional = ["tokens", "context"]
    call.streams = [Stream("tokens", "x", 0, (1,)), Stream("context", "context", 0, (1,))]
    return call


@pytest.mark.parametrize("turned", [False, True])
def test_keys_that_are_a_softmax_of_what_was_handed_over_are_a_design(turned: bool) -> None:
    analysis = analyze(of_two(turned=turned))
    assert [(each.kind, each.property) for each in analysis.findings] == [("design", "linear-attention")]


@pytest.mark.parametrize(("keys", "queries"), [(-1, 1), (-1, -1)])
def test_softmaxes_of_it_over_the_other_axes_are_wrong(keys: int, queries: int) -> None:
    assert len(analyze(of_two(keys, queries)).violations) == 1
