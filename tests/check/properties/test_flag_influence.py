"""A flag that says causal, of code whose mask has as many keys as queries: asked with as many of both."""

from __future__ import annotations

import torch
from torch import Tensor

from property_cases import drawn
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    scores = q @ k.mT / 2
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


def up_to_itself(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    square = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool)
    return attention(q, k, v, square.tril() if is_causal else None)


def from_itself_on(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    square = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool)
    return attention(q, k, v, square.triu() if is_causal else None)


def everything(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    square = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool)
    return attention(q, k, v, square if is_causal else None)


def said_of_the_flag(function: object) -> list[Finding]:
    arguments = {name: drawn(2, 3 + (name != "q"), 4, seed=seed) for seed, name in enumerate("qkv")}
    streams = [Stream(name, name, 0, (1,)) for name in "qkv"]
    call = Invocation(function, arguments, [*"qkv"], streams)
    call.causal_flags = ["is_causal"]
    return [each for each in analyze(call, masks=True).findings if "is_causal" in each.message]


def test_a_flag_is_asked_with_as_many_keys_as_queries() -> None:
    (found,) = said_of_the_flag(up_to_itself)
    assert (found.kind, found.property) == ("holds", "mask-flag")


def test_a_flag_that_hides_the_past_is_wrong() -> None:
    (found,) = said_of_the_flag(from_itself_on)
    assert (found.kind, found.property) == ("violation", "mask-pattern")
    assert "the wrong way round" in found.message


def test_a_flag_without_an_effect_is_wrong() -> None:
    (found,) = said_of_the_flag(everything)
    assert (found.kind, found.property) == ("violation", "mask-pattern")
    assert "changes nothing" in found.message
