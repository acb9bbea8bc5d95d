"""Documents in one row that a token closes, by what the code says: that token is of the document that it closes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.documentation import comments_of, documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in

__all__ = ["closing_token_findings"]

AT = 2
"""The place of the token that closes the first document: others come before it and after it."""
_CLOSING = re.compile(r"_?(?:eos|eot|eod|end_of_(?:text|document|sequence))(?:_?token)?(?:_?(?:id|idx|index))?", re.I)
"""Names of the id of such a token."""
_AN_END = r"(?:an?\s+|the\s+|its\s+)?[`'\"<(|]*(?:eo[std]\b|end)"
_CLOSED = re.compile(
    rf"\b(?:closed|ended|terminated|finished|followed)\s+(?:by|with)\s+{_AN_END}|\bends?\s+(?:with|in|on)\s+{_AN_END}"
    r"|\beo[std]\b[^.;\n]*\b(?:closes|ends|terminates|is the last token of|belongs to)\s+(?:an?|the|its|each|every)\b",
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
    said = [documentation_of(invocation.target), *comments_of(invocation.target)]
    if not any(_CLOSED.search(each) and not _BEGINS.search(each) for each in said):
        return
    ids = {number for name, number in _numbers(invocation.target) if _CLOSING.fullmatch(name)}
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
    """The whole numbers that modules keep, or that a function takes by default, with their names."""
    for owner in modules_in(target):
        for module in owner.modules():
            yield from ((name, value) for name, value in vars(module).items() if type(value) is int)
    if inspect.isroutine(target):
        for name, each in inspect.signature(target).parameters.items():
            if type(each.default) is int:
                yield name, each.default
