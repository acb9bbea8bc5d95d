"""What is read of a target once, however many calls of it are tried: of a large module each look takes long."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["facts_of", "read_once"]

MAX_TARGETS = 4
"""Whose facts are kept at once: a search asks about one or two in turn."""
P = ParamSpec("P")
Fact = TypeVar("Fact")

_known: dict[int, tuple[object, dict[Any, Any]]] = {}
"""By its identity, each target and its facts. The target is kept as well, so that no other has the same identity."""


def facts_of(target: object) -> dict[Any, Any]:
    """The facts that are known of a target, a dict to add others to.

    A call runs on a copy of its target, so that what a target is made of stays as it is while calls are searched.
    """
    kept = _known.pop(id(target), (target, {}))
    _known[id(target)] = kept  # last: it was asked about last
    while len(_known) > MAX_TARGETS:
        del _known[next(iter(_known))]
    return kept[1]


def read_once(fact: Callable[P, Fact]) -> Callable[P, Fact]:
    """A function of a target, and of what can be a key of a dict, which computes its answer once for each.

    The answer is shared: who asks must not change it.
    """

    @functools.wraps(fact)
    def known(*args: P.args, **kwargs: P.kwargs) -> Fact:
        facts, key = facts_of(args[0]), (fact, args[1:], *kwargs.items())
        if key not in facts:
            facts[key] = fact(*args, **kwargs)
        answer: Fact = facts[key]
        return answer

    return known
