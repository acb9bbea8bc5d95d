"""Queries that are meant to see what is before them alone, not themselves (PixelSNAIL, Chen et al. 2018)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence
from regard.check.trace.operation import Operation

__all__ = ["sees_what_is_before_on_purpose"]

_STRICTLY = re.compile(
    r"\bstrictly[- ](?:before|earlier|preceding|previous|prior|past)\b|\bexclud(?:es|ing) (?:itself|themselves"
    r"|(?:the current|its own) (?:one|token|position|place|step|pixel|element|query)\b)"
    r"|(?:\bnot|\bnever|\bcannot|n't) (?:see|attend to|look at|read) (?:itself|themselves)"
    r"|\bbut not (?:itself|themselves)\b",
    re.I,
)
FILLS = frozenset({"fill", "zero", "copy"})
FILLS_BY_MASK = frozenset({"masked_fill", "where"})


def sees_what_is_before_on_purpose(evidence: Evidence, allowed: Tensor) -> str:
    """What shows that queries are meant to see all that is before them and not themselves; empty where nothing does.

    Args:
        evidence: of the attention.
        allowed: (queries, keys): which scores have a weight.
    """
    before = torch.ones_like(allowed).tril(-1)
    if allowed.shape[0] != allowed.shape[1] or not torch.equal(allowed[1:], before[1:]):
        return ""
    if not bool(allowed[0].any()) and _is_first_emptied(evidence):
        return "what the first would read, which has nothing before it, is set to 0 by itself"
    return "its text says so" if _STRICTLY.search(re.sub(r"[\s#]+", " ", evidence.code)) else ""


def _is_first_emptied(evidence: Evidence) -> bool:
    """Whether an operation sets the weights of the first query to 0, and leaves those of all others.

    A mask of queries and keys that is laid on weights once more is none: where it is wrong, it hides the same twice.
    """
    table = evidence.base
    queries = int(table.query.token.max()) + 1
    for query, kept in _kept_after_the_softmax(evidence):
        least, most = (
            torch.zeros(queries, dtype=torch.long).scatter_reduce(0, query, kept.long(), how, include_self=False)
            for how in ("amin", "amax")
        )
        asked = torch.zeros(queries, dtype=torch.bool).index_fill(0, query, True)
        if bool(asked[0]) and not int(most[0]) and bool((least[1:] == 1)[asked[1:]].all()):
            return True
    return False


def _kept_after_the_softmax(evidence: Evidence) -> Iterator[tuple[Tensor, Tensor]]:
    """For each operation that sets weights to 0: whose weights it is told of, and which it keeps."""
    table = evidence.base
    run, row_of = table.instance.run, table.rows_of_tags()
    if not table.instance.softmaxes:
        return
    start = min(each.index for each in table.instance.softmaxes) + 1
    end = min((each.operation.index for each in table.instance.sums), default=len(run.trace))
    for operation in run.trace.operations[start:end]:
        name = operation.name.rstrip("_")
        rows = [row_of[tags] for tags in run.tags.inputs[operation.index]]
        if name == "cat":
            yield from _joined_behind_zeros(operation, rows, table.query.token)
            continue
        of_weights = (number for number, each in enumerate(rows) if bool((each >= 0).any()))
        # Zeros that were made like the weights have their places too.
        at = next((number for number in of_weights if bool((operation.inputs[number].data != 0).any())), None)
        if at is None or not operation.outputs:
            continue
        result = operation.outputs[0].data
        if name in FILLS and operation.is_in_place and at == 0:
            known = rows[0] >= 0
            yield table.query.token[rows[0][known]], result[known] != 0
            continue
        others = [each.data for number, each in enumerate(operation.inputs) if number != at]
        told = next((each for each in others if each.ndim), None)
        if told is None or name not in FILLS_BY_MASK | {"mul"}:
            continue
        own, told = rows[at].broadcast_to(result.shape), told.broadcast_to(result.shape)
        known = own >= 0
        keeps = told == 0 if name == "masked_fill" else told != 0
        if name == "where" and at == 2:
            keeps = ~keeps
        yield table.query.token[own[known]], keeps[known]


def _joined_behind_zeros(operation: Operation, rows: list[Tensor], queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The same of weights of all queries but some, to which zeros are joined, as in torch.cat([zeros, weights[1:]]).

    Args:
        operation: that joins.
        rows: of each tensor that it takes, which scores its numbers are of.
        queries: (scores): the query of each.
    """
    are_weights = [bool((each >= 0).any()) for each in rows]
    others = [each.data for each, is_of in zip(operation.inputs, are_weights, strict=True) if not is_of]
    if not any(are_weights) or len(others) != 1 or bool(others[0].any()):
        return
    kept = torch.cat([queries[each[each >= 0]] for each, is_of in zip(rows, are_weights, strict=True) if is_of])
    left = torch.tensor([each for each in range(int(queries.max()) + 1) if not bool((kept == each).any())])
    if len(left):
        is_kept = torch.cat([torch.zeros(len(left), dtype=torch.bool), torch.ones(len(kept), dtype=torch.bool)])
        yield torch.cat([left, kept]), is_kept
