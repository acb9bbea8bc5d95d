"""Documents in one row that a token closes, or begins, by what the code says: that token is of its document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.code import documentation_of_file, documentation_of_functions
from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in
from regard.check.target.token_ids import special_ids

__all__ = ["closing_token_findings"]

AT = 2
"""The place of the token that closes the first document: others come before it and after it."""
_CLOSING = re.compile(
    r"_?(?:eos|eot|eod|endoftext|end_of_(?:text|document|sequence|doc)|(?:doc|text)_?end|end)(?:_?tok(?:en)?)?(?:_?(?:id|idx|index))?",
    re.I,
)
"""Names of the id of such a token."""
_AN_END = r"(?:(?:an?|the|its|their|one)\s+(?:own\s+)?)?[`'\"<(|]*(?:eo[std]\b|end)"
_CLOSED = re.compile(
    rf"\b(?:closed|ended|terminated|finished|followed)\s+(?:by|with)\s+{_AN_END}"
    rf"|\b(?:ends?|ending)\s+(?:with|in|on)\s+{_AN_END}"
    r"|\b(?:eo[std]\b|end-?of-?\w+\b|<?\|?endoftext\b)[^.;\n]*"
    r"\b(?:closes|ends|terminates|finishes|is the last token of|(?:is (?:a )?)?part of|belongs to|counts? (?:to|with))"
    r"\s+(?:an?|the|its|each|every)\b",
    re.I,
)
"""What is said of the documents, or of the token; in many codes it begins the next one."""
_BEGINS = re.compile(r"\b(?:begins?|starts?|opens?|precedes?|separat\w+|next|in front)\b", re.I)
_OPENING = re.compile(
    r"_?(?:bos|bod|begin_of_(?:text|document|sequence|doc))(?:_?tok(?:en)?)?(?:_?(?:id|idx|index))?", re.I
)
_OPENED = re.compile(
    r"\b(?:starts?|begins?|begun|beginning|starting|opened|preceded|headed)\s+(?:with|by|in|on|at)\s+"
    r"(?:(?:an?|the|its|their|one)\s+(?:own\s+)?)?[`'\"<(|]*(?:bo[sd]\b|begin)"
    r"|\bbo[sd]\b[^.;\n]*\b(?:opens|begins|starts|is the first token of|belongs to)\s+(?:an?|the|its|each|every)\b",
    re.I,
)
"""What is said of a token that begins a document."""
_ENDS = re.compile(r"\b(?:closed?|closes|ends?|ended|separat\w+|previous|last)\b", re.I)
_BOUNDARY = re.compile(r"\b(?:eo[std]|bo[sd]|endoftext|(?:end|begin(?:ning)?)[- ]of)\b", re.I)
_KINDS = {"closing-token": (_CLOSING, _CLOSED, _BEGINS), "opening-token": (_OPENING, _OPENED, _ENDS)}
"""By property: the names of the token's id, what is said of it, and what is said where it may be otherwise."""


def closing_token_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether the token that closes a document sees it, and no token of the next document sees that token.

    And whether one that begins a document sees nothing of the one before, and is seen by its own.

    Args:
        invocation: a call that is given the ids of its tokens.
        evidence: of its attention.
    """
    target = invocation.target
    said = [documentation_of(target), *comments_of(target), documentation_of_file(target)]
    said += documentation_of_functions(target).split("\n\n")
    said += [inspect.getdoc(each) or "" for each in vars(type(target)).values() if inspect.isfunction(each)]
    numbers, table = [*_numbers(target)], evidence.base
    samples, _, queries, keys = table.dense(table.product).shape
    if queries != keys or keys < AT + 2:
        return
    for kind, (names, is_said, is_not) in _KINDS.items():
        ids = {number for name, number in numbers if names.fullmatch(name)}
        if len(ids) != 1 or not any(is_said.search(each) and not is_not.search(each) for each in said):
            continue
        if any(_BOUNDARY.search(each) and is_not.search(each) for each in documentation_of(target).split(".")):
            continue  # what it says itself is before what others in its file say
        (boundary,) = ids
        for name, given in invocation.arguments.items():
            if not isinstance(given, Tensor) or given.is_floating_point() or given.shape != (samples, keys):
                continue
            special = {number for each, number in numbers if _CLOSING.fullmatch(each) or _OPENING.fullmatch(each)}
            words = [each for each in torch.unique(given.long()).tolist() if each not in special]
            whole = torch.full_like(given, words[-1] if words else boundary + 1, dtype=torch.long)
            two = whole.index_fill(1, torch.tensor([AT]), boundary)
            alone, apart = (
                masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: each}))
                for each in (whole, two)
            )
            if alone is None or apart is None:
                continue
            free, seen = (table.dense(each, 0.0).abs().amax((0, 1)) > ZERO_WEIGHT for each in (alone, apart))
            if not free[AT + 1, AT - 1] or seen[AT + 1, AT - 1] or not free[AT, AT - 1]:
                continue  # it keeps no documents apart
            line = table.instance.scores_location
            where = f"where token {AT} of {name} is {boundary}, which"
            if kind == "closing-token" and not seen[AT, AT - 1] and seen[AT + 1, AT]:
                message = (
                    f"{where} closes a document by the words of the code, it sees no other token of that document, and "
                    f"token {AT + 1}, of the next one, sees it"
                )
                yield Finding("violation", kind, "mask", message, line)
                return
            if kind == "opening-token" and seen[AT, AT - 1] and not seen[AT + 1, AT]:
                message = (
                    f"{where} begins a document by the words of the code, it sees the document before, and token "
                    f"{AT + 1}, of its own, does not see it"
                )
                yield Finding("violation", kind, "mask", message, line)
                return


def _numbers(target: Any) -> Iterator[tuple[str, int]]:
    """The whole numbers that modules, or their files, keep, or that a function takes by default, with their names."""
    for owner in modules_in(target):
        for module in owner.modules():
            yield from ((name, value) for name, value in vars(module).items() if type(value) is int)
    yield from (("eos", number) for number in special_ids(target, "end"))
    yield from (("bos", number) for number in special_ids(target, "begin"))
    if inspect.isroutine(target):
        constants = getattr(target, "__globals__", {}).items()
        yield from ((name, value) for name, value in constants if type(value) is int and name.isupper())
        for name, each in inspect.signature(target).parameters.items():
            if type(each.default) is int:
                yield name, each.default
