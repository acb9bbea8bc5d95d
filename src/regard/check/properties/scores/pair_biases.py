"""A bias of each query and key that is made of what is handed over for each two tokens, as in AlphaFold's Evoformer."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["pair_bias"]

PAIR = (0, 1)
"""Of tokens, whose numbers are changed."""
_ROWS_FIRST = re.compile(r"pair[\s_-]*bias|alpha[\s_-]*fold|evoformer|\bb_\{?(?:\w?ij)", re.I)
_OTHERWISE = re.compile(r"triang|ending|transpos|\bedges?\b|\bgraph|\bb_\{?(?:ji|kj|ki)", re.I)
"""Who turns pairs on purpose: AlphaFold 2, algorithm 14, about the ending node; edges that lead from key to query."""


def pair_bias(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """What is found where one pair of tokens changes the scores of one query and key alone; None elsewhere.

    Args:
        invocation: the call.
        evidence: an attention to whose scores something is added.
    """
    table = evidence.base
    asking = {table.streams[each] for each in {*table.query.stream.tolist(), *table.key.stream.tolist()} if each >= 0}
    for name, given in invocation.arguments.items():
        if name in asking or not isinstance(given, Tensor) or not given.is_floating_point() or given.ndim != 4:
            continue
        if given.shape[1] != given.shape[2] or given.shape[1] < len(PAIR):
            continue
        changed = given.clone()
        changed[(slice(None), *PAIR)] += torch.randn(
            given.shape[0], given.shape[3], generator=torch.Generator().manual_seed(5), dtype=given.dtype
        )
        run = record_invocation(invocation, {**invocation.arguments, name: changed})
        if run.error or not run.same_operations(table.instance.run.trace) or bool(table.masked.isnan().any()):
            continue
        moved = table.of_run(run).masked != table.masked
        places = (each.token % given.shape[1] for each in (table.query, table.key))
        pairs = {(int(query), int(key)) for query, key in zip(*(each[moved] for each in places), strict=True)}
        if len(pairs) != 1:
            continue
        (found,) = pairs
        added = table.instance.added
        line = added[0].operation.location if added else table.instance.scores_location
        text = name_and_documentation(invocation.target)
        if found == PAIR[::-1] and _ROWS_FIRST.search(text) and not _OTHERWISE.search(text):
            message = (
                f"the bias of query {found[0]} and key {found[1]} is made of {name}[:, {PAIR[0]}, {PAIR[1]}], the pair "
                "the other way round"
            )
            return Finding("violation", "bias-of-the-pair", "bias", message, line)
        if found in (PAIR, PAIR[::-1]):
            message = f"a bias is made of {name}, which has a vector for each two tokens, and is added to their scores"
            return Finding("design", "pair-bias", "bias", message, line)
    return None
