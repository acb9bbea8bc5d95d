"""Arguments that may be left out, and hold a number of each token that the code reads all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from regard.check.target.argument import BESIDE, Argument
from regard.check.target.documented_shapes import documented_letters
from regard.check.target.looked_up import gets_an_axis, table_of
from regard.check.target.names import call_meaning
from regard.check.target.none_in_the_way import lacking_inside, none_in_the_way
from regard.check.target.token_ids import drawn_ids

__all__ = ["AXES_WITH_HEADS", "asked_for", "candidates_beside"]

AXES_WITH_HEADS = 3
"""Of a number of each token and head."""
_SHAPES = ("bt", "bt1")
"""The axes that they may have."""


def asked_for(target: Any, arguments: list[Argument], source: str, failed: Exception) -> Iterator[list[Argument]]:
    """The arguments, where a call stumbles over one that is None: with sequences and masks, and with what is untold.

    Or with what a function inside of it has to be given, and is handed as the call is.

    Args:
        target: what is called.
        arguments: of a call that failed.
        source: the text of what is called.
        failed: what it raised.
    """
    names = [each.name for each in arguments]
    inside = lacking_inside(failed.__cause__, target, names)
    if inside:  # what is handed on to it by **kwargs
        yield [*arguments, *(Argument(name, call_meaning(name), required=True) for name in inside)]
    if "NoneType" not in str(failed):
        return
    found = [replace(each, required=True) if each.may_be_none or _are_marks(each) else each for each in arguments]
    if found != arguments:
        yield found
    numbers = [each for each in arguments if each.is_untold and _is_number(target, source, each.name)]
    if numbers:
        yield [
            replace(each, required=True, role=BESIDE, guessed=documented_letters(source, each.name) not in _SHAPES)
            if each in numbers
            else each
            for each in arguments
        ]
    optional = [each.name for each in arguments if not each.required and each.default is None and not each.may_be_none]
    if any("frames" in each.name.lower() and each.default == 1 for each in arguments):
        return  # what attends over frames would read a single key
    in_the_way = none_in_the_way(failed.__cause__, target, optional)
    untold = any(each.is_untold for each in arguments if each.name in in_the_way)
    for role in ("condition", *([None] if untold else [])) if in_the_way else ():
        yield [
            replace(each, required=True, role=role if each.is_untold else each.role, guessed=each.is_untold)
            if each.name in in_the_way
            else each
            for each in arguments
        ]


def _are_marks(argument: Argument) -> bool:
    """Whether it is None by default, and tells something of each token."""
    return argument.role == "marks" and not argument.required


def _is_number(target: Any, source: str, name: str) -> bool:
    """Whether it is written to be one of each token, or is looked up in a table, or is given an axis behind all."""
    is_told = documented_letters(source, name) in _SHAPES or table_of(target, name) is not None
    return is_told or gets_an_axis(target, name)


def candidates_beside(target: Any, source: str, name: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """A number of each token, of its own axis where it is written so: an id of a table, or whole or not.

    Args:
        target: what is called.
        source: its text.
        name: of the argument, as rtgs: (B, T, 1).
    """
    told = documented_letters(source, name)
    if len(told) == AXES_WITH_HEADS and told[-1] != "1":
        yield "numbers of each head", lambda draft: draft.draw(*draft.shape("x", draft.layout)[:-1]).sigmoid()
        return
    table = table_of(target, name)
    for letters in sorted(_SHAPES, key=lambda each: each != told):
        behind = (1,) if letters == "bt1" else ()
        if table is not None:
            yield f"ids {letters}", partial(_ids, vocab=table.num_embeddings, behind=behind)
            continue
        yield f"numbers {letters}", partial(_numbers, behind=behind)
        yield f"places {letters}", partial(_places, behind=behind)


def _ids(draft: Any, vocab: int, behind: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(len(draft.axes))
    return drawn_ids((draft.sizes.batch, draft.tokens, *behind), vocab, generator)


def _numbers(draft: Any, behind: tuple[int, ...]) -> Any:
    return draft.draw(draft.sizes.batch, draft.tokens, *behind)


def _places(draft: Any, behind: tuple[int, ...]) -> Any:
    places = torch.arange(draft.tokens).expand(draft.sizes.batch, draft.tokens)
    return places.reshape(draft.sizes.batch, draft.tokens, *behind).clone()
