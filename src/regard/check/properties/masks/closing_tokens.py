"""Documents in one row that a token closes, by what the code says: that token is of the document that it closes."""

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


def closing_token_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Whether the token that closes a document sees it, and no token of the next document sees that token.

    Args:
        invocation: a call that is given the ids of its tokens.
        evidence: of its attention.
    """
    target = invocation.target
    said = [documentation_of(target), *comments_of(target), documentation_of_file(target)]
    said += documentation_of_functions(target).split("\n\n")
    said += [inspect.getdoc(each) or "" for each in vars(type(target)).values() if inspect.isfunction(each)]
    if not any(_CLOSED.search(each) and not _BEGINS.search(each) for each in said):
        return
    ids = {number for name, number in _numbers(target) if _CLOSING.fullmatch(name)}
    table = evidence.base
    samples, _, queries, keys = table.dense(table.product).shape
    if len(ids) != 1 or queries != keys or keys < AT + 2:
        return
    closing = ids.pop()
    for name, given in invocation.arguments.items():
        if not isinstance(given, Tensor) or given.is_floating_point() or given.shape != (samples, keys):
            continue
        whole = torch.full_like(given, closing + 1, dtype=torch.long)
        two = whole.index_fill(1, torch.tensor([AT]), closing)
        alone, apart = (
            masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: each}))
            for each in (whole, two)
        )
        if alone is None or apart is None:
            continue
        free, seen = (table.dense(each, 0.0).abs().amax((0, 1)) > ZERO_WEIGHT for each in (alone, apart))
        is_apart = bool(free[AT + 1, AT - 1]) and not bool(seen[AT + 1, AT - 1])
        if is_apart and bool(free[AT, AT - 1]) and not bool(seen[AT, AT - 1]) and bool(seen[AT + 1, AT]):
            message = (
                f"where token {AT} of {name} is {closing}, which closes a document by the words of the code, it sees "
                f"no other token of that document, and token {AT + 1}, of the next one, sees it"
            )
            yield Finding("violation", "closing-token", "mask", message, table.instance.scores_location)
            return


def _numbers(target: Any) -> Iterator[tuple[str, int]]:
    """The whole numbers that modules, or their files, keep, or that a function takes by default, with their names."""
    for owner in modules_in(target):
        for module in owner.modules():
            yield from ((name, value) for name, value in vars(module).items() if type(value) is int)
    yield from (("eos", number) for number in special_ids(target, "end"))
    if inspect.isroutine(target):
        constants = getattr(target, "__globals__", {}).items()
        yield from ((name, value) for name, value in constants if type(value) is int and name.isupper())
        for name, each in inspect.signature(target).parameters.items():
            if type(each.default) is int:
                yield name, each.default
