"""Queries that a call may be given beside its tokens, and without which it does not run as it is made."""

from __future__ import annotations

from dataclasses import replace

from regard.check.target.argument import STREAMS, Argument
from regard.check.target.names import call_meaning, first_word
from regard.check.target.usage import is_tensor

__all__ = ["asked_by_others"]


def asked_by_others(named: list[Argument], source: str) -> list[list[Argument]]:
    """The reading by which an optional argument named after queries, as q_global, asks the tokens; or none.

    Args:
        named: the arguments of a call.
        source: its text.
    """
    sequences = [each for each in named if each.required and each.role in STREAMS]
    asking = [each for each in named if not each.required and each.default is None and _is_of_queries(each, source)]
    if len(asking) != 1 or [each.role for each in sequences] != ["x"]:
        return []
    roles = {sequences[0].name: "context", asking[0].name: "x"}
    return [[replace(each, role=roles[each.name], required=True) if each.name in roles else each for each in named]]


def _is_of_queries(argument: Argument, source: str) -> bool:
    """Whether a tensor is named after queries, alone or by its first word."""
    name = argument.name
    return argument.role in (None, "q") and "q" in (first_word(name), call_meaning(name)) and is_tensor(source, name)
