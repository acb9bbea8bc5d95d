"""What to hand over where no call runs: a sentence, and an example that can be read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from regard.check.target.argument import PLAIN, STREAMS, Argument, source_of
from regard.check.target.documented_shapes import documented_letters
from regard.check.target.errors import Failed
from regard.check.target.layouts import layouts
from regard.check.target.parse import LETTERS
from regard.check.target.signature import readings

__all__ = ["EXAMPLE", "refusal"]

FACTORY = "a factory FILE.py:make that returns (module, inputs)"
EXAMPLE = f'--args "x=(B,T,D), freqs=rope(T,d)", or {FACTORY}'
"""What says how inputs are handed over."""
OF_ROLES: Mapping[str | None, str] = {
    "k": "(B,S,D)",
    "v": "(B,S,D)",
    "context": "(B,S,D)",
    "ids": "ids(B,T,V)",
    "image": "(B,3,32,32)",
    "mask": "true(T,T)",
    "padding": "true(B,T)",
    "rope": "rope(T,d)",
    "cos": "cos(T,d)",
    "sin": "sin(T,d)",
    "positions": "arange(T)",
    "coordinates": "(B,T,3)",
    "w_q": "(D,D)",
    "w_k": "(D,D)",
    "w_v": "(D,D)",
    "w_o": "(D,D)",
    "vector": "(1,D)",
    "condition": "(B,D)",
}
"""As `regard.check.target.parse` reads them."""
OF_KEYS = frozenset({"k", "v", "context"})


def refusal(call: Any, name: str, given: Collection[str], last: Failed, unknown: Sequence[str]) -> str:
    """That no call runs, and what to hand over.

    Args:
        call: what was called.
        name: of the implementation.
        given: the names of the inputs that were handed over.
        last: the error of the call that came farthest.
        unknown: arguments of the constructor that no name tells.
    """
    guessed = "the inputs that were handed over" if given else "guessed inputs of every layout"
    example = _example(call, readings(call)[0], given, is_none="NoneType" in str(last))
    said = f"{name} does not run with {guessed}; the call that came farthest: {last}; hand over its inputs: {example}"
    for each in unknown:
        said += f"; {each} of its constructor has no known meaning: give --arg {each}=VALUE"
    return said


def _example(call: Any, arguments: Sequence[Argument], given: Collection[str], *, is_none: bool) -> str:
    """What a user may write: what has to be given, in its documented shape or a likely one.

    Args:
        call: what is called.
        arguments: of the call.
        given: the names of those that were handed over.
        is_none: whether the code stumbles over an argument that is None: it needs one that may be left out.
    """
    source = source_of(call)
    wanted = [
        each
        for each in arguments
        if each.required or (is_none and each.role is None and each.default is None and each.annotation not in PLAIN)
        if each.name not in given and not each.within
    ]
    is_map = layouts(call, list(arguments))[0].letters == "bdyx"
    values = {each.name: value for each in wanted if (value := _written(each, source, is_map=is_map)) is not None}
    if not values:
        return EXAMPLE
    said = ", ".join(f"{name}={value}" for name, value in values.items())
    letters = [letter for letter in LETTERS if any(re.search(rf"\b{letter}\b", one) for one in values.values())]
    means = ", ".join(f"{letter} {LETTERS[letter]}" for letter in letters)
    return f'--args "{said}" with the axes that it takes ({means}), or {FACTORY}'


def _written(argument: Argument, source: str, *, is_map: bool) -> str | None:
    """The value of one argument, as `--args` takes it; None of what is no tensor.

    Args:
        argument: of the call.
        source: the text of what is called.
        is_map: whether its sequences are maps of features.
    """
    role, told = argument.role, documented_letters(source, argument.name)
    if role is None and argument.name.endswith("_ids"):
        return OF_ROLES["ids"]
    if argument.annotation in PLAIN or (role not in (*STREAMS, None) and role not in OF_ROLES):
        return None
    if role == "x" and is_map and len(told) != len("btd"):
        return "(B,D,4,6)"
    if role in (*STREAMS, None) and role not in ("ids", "image") and len(told) > 1:
        letters = {"b": "B", "t": "S" if role in OF_KEYS else "T", "1": "1"}
        return f"({','.join(letters.get(each, '2') for each in told[:-1])},{letters.get(told[-1], 'D')})"
    return OF_ROLES.get(role, "(B,T,D)")
