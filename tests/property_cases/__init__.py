"""For each property of attention: an implementation that violates it and nothing else, and its right twin.

A comment marks the line that the report has to name: `# here`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor

from attention_styles import heads_call, tokens_call
from regard.check.target import Invocation, Stream
from regard.check.target.preparation import prepare

__all__ = [
    "HEADS",
    "WIDTH",
    "Case",
    "all_cases",
    "drawn",
    "joined",
    "of_module",
    "of_q_k_v",
    "of_x",
    "of_x_and_context",
    "of_x_and_lengths",
    "split",
]

WIDTH, HEADS = 8, 2
"""Of what a function of x is given."""


def drawn(*sizes: int, seed: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """(batch, tokens, width) as (batch, heads, tokens, width of a head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(heads: Tensor) -> Tensor:
    """The way back."""
    return heads.transpose(1, 2).flatten(2)


def of_x(function: Any, *, masks: tuple[str, ...] = (), tokens: int = 4) -> Invocation:
    """A call of a function of x."""
    call = tokens_call(function, drawn(2, tokens, WIDTH, seed=0))
    call.masks = [*masks]
    return call


def of_module(kind: Any) -> Invocation:
    """A call of a module with a vector of a width for each token."""
    module = kind()
    prepare(module, 1)
    return of_x(module)


def of_x_and_lengths(kind: Any, *, tokens: int) -> Invocation:
    """A call of a module with the number of real tokens of each sample: all of them."""
    module = kind()
    prepare(module, 1)
    call = of_x(module, tokens=tokens)
    given = {**call.arguments, "lengths": torch.full((2,), tokens)}
    return replace(call, arguments=given, positional=["x", "lengths"], lengths=["lengths"])


def of_x_and_context(function: Any) -> Invocation:
    """A call of a function of x and a context of as many tokens."""
    streams = [Stream("x", "x", 0, (1,)), Stream("context", "context", 0, (1,))]
    arguments = {"x": drawn(2, 3, WIDTH, seed=0), "context": drawn(2, 3, WIDTH, seed=1)}
    return Invocation(function, arguments, ["x", "context"], streams)


def of_q_k_v(
    function: Any, *, queries_heads: int = HEADS, masks: tuple[str, ...] = (), causal_flags: tuple[str, ...] = ()
) -> Invocation:
    """A call of a function of queries, keys and values with heads, as many keys as queries."""
    given = (drawn(2, heads, 3, 4, seed=seed) for seed, heads in enumerate((queries_heads, HEADS, HEADS)))
    call = heads_call(function, *given)
    call.masks, call.causal_flags = [*masks], [*causal_flags]
    return call


@dataclass(frozen=True)
class Case:
    """An implementation that violates a property, and one that does not."""

    property: str
    wrong: Callable[..., Tensor]
    right: Callable[..., Tensor]
    call: Callable[[Any], Invocation] = of_q_k_v
    has_line: bool = True
    """Whether it is one line that violates it."""
    attentions: int = 1
    """How many are in it."""

    @property
    def name(self) -> str:
        """The property, and what violates it."""
        return f"{self.property}: {self.wrong.__name__}"


def all_cases() -> list[Case]:
    """All of them."""
    modules = [import_module(each.name) for each in iter_modules(__path__, f"{__name__}.")]
    return [case for module in modules for case in module.CASES]
