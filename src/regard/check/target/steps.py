"""A decoder that takes one new token in each call, and keeps those before: all of them as one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.target.argument import MATRICES, Argument
from regard.check.target.names import call_meaning

__all__ = ["asks_for_one_token", "asserts_one_token", "in_steps", "may_take_steps", "told_how_many"]


_TOLD = (("place", "start"), ("place", "positions"), ("place", None), ("positions", "positions"))
"""The role of such an argument and what its name means, as start_pos, pos, or nothing, as i.

Of one token its position, its place in a cache and the number of those before it are the same number.
"""
_ONE_A_CALL = re.compile(
    r"(?:\"\"\"|[.:;]\s)\s*(?:(?:it|each call)\s+)?(?:(?:takes|reads|expects|is (?:given|handed|called with))\s+)?"
    r"(?:exactly\s+)?(?:one|a single)\s+(?:new\s+)?token(?:\s*\([^)]*\))?\s+(?:a|per|each|in each)\s+call\b",
    re.I,
)
"""In a documentation: no call is given several tokens."""


def told_how_many(arguments: Sequence[Argument]) -> list[Argument]:
    """The arguments, where each call is told how many tokens came before: at first none."""
    return [
        replace(each, role="start") if (each.role, call_meaning(each.name)) in _TOLD else each for each in arguments
    ]


def asks_for_one_token(source: str) -> bool:
    """Whether the code asserts that a length is 1, or a sentence of its documentation begins with one token a call."""
    return asserts_one_token(source) or _ONE_A_CALL.search(source) is not None


def asserts_one_token(source: str) -> bool:
    """Whether the code asserts that a length is 1: in every call, or only where a cache is given."""
    return re.search(r"^\s*assert\s+[\w.]*(?:len|length|tokens|T)(?:\(\w+\))?\s*==\s*1\b", source, re.M) is not None


def may_take_steps(arguments: Sequence[Argument]) -> bool:
    """Whether the arguments that have to be given are the tokens, and how many came before if that is to be told.

    Beside these a function may be told matrices and sizes.
    """
    roles = {str(each.role) for each in told_how_many(arguments) if each.required} - MATRICES
    return {each for each in roles if not each.startswith("size ")} - {"start"} in ({"ids"}, {"x"})


def in_steps(
    target: Callable[..., Any], argument: str, axis: int, start: str, carried: Sequence[str]
) -> Callable[..., Any]:
    """What calls a target once for each token, in order, and joins what it returns.

    Args:
        target: takes its arguments by name.
        argument: of the tokens.
        axis: of the tokens, along which they are handed over one by one.
        start: the argument that says how many came before; empty where none does.
        carried: the arguments that each call is given of what the one before returned behind its output.
    """

    def call(**given: Any) -> Any:
        tokens = given[argument]
        results, kept = [], dict[str, Any]()
        for place in range(tokens.shape[axis]):
            one = {argument: tokens.narrow(axis, place, 1), **({start: given[start] + place} if start else {})}
            results.append(target(**{**given, **kept, **one}))
            kept = _carried(carried, results[-1])
        return _joined(results, axis)

    return call


def _carried(names: Sequence[str], result: Any) -> dict[str, Any]:
    """What a call returned behind its output, by the arguments that take it: one takes all, or each takes one."""
    behind = list(result[1:]) if isinstance(result, list | tuple) else []
    if len(names) == 1 and len(behind) > 1:
        return {names[0]: tuple(behind)}
    return dict(zip(names, behind, strict=True)) if len(names) == len(behind) else {}


def _joined(results: Sequence[Any], axis: int) -> Any:
    """The outputs of all tokens; of several in a result, of the first one."""
    if isinstance(results[0], list | tuple):
        return _joined([each[0] for each in results], axis)
    if not all(isinstance(each, Tensor) for each in results):
        return results[-1]
    is_axis = results[0].ndim > axis and results[0].shape[axis] == 1
    return torch.cat([*results], axis) if is_axis else torch.stack([*results], axis)
