"""Global tokens, which see all others and are seen by all: one alone does, whatever the others are.

Beltagy et al. 2020, "Longformer", section 3.1: global attention is symmetric.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.code import code_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["global_token_findings"]

_GLOBAL = re.compile(r"(?:is_?|\w+_)?global(?:_\w+)?", re.I)
"""Names of arguments that mark global tokens."""
_NO_NOT = r"(?:(?!\b(?:not|no|never|unless|if)\b|n't)[^.;])*"
_ALL = r"(?:all|every)\b(?! +(?:earlier|previous|past|preceding|prior|(?:other )?global|local))"
_SEE_ALL = re.compile(rf"\bglobal\b{_NO_NOT}\b(?:sees?|attends? to|looks? at) +{_ALL}", re.I)
_SEEN_BY_ALL = re.compile(rf"\bglobal\b{_NO_NOT}\b(?:seen|attended(?: to)?|looked at) by +{_ALL}", re.I)
_CAUSAL = re.compile(r"causal|\bfuture\b|\blater\b", re.I)
"""In a code that may hide later tokens, whatever is marked."""


def global_token_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """One token marked as global that does not see what its documentation says, or is not seen, beside hidden keys.

    Args:
        invocation: a call of one sequence, with marks of its tokens.
        several: the evidence of its attentions.
    """
    text = " ".join(code_of(invocation.target).split())
    sides = [is_asking for is_asking, said in ((True, _SEE_ALL), (False, _SEEN_BY_ALL)) if said.search(text)]
    if len(several) != 1 or not sides or _CAUSAL.search(text):
        return
    table = several[0].base
    for name, marks in invocation.arguments.items():
        if not isinstance(marks, Tensor) or marks.ndim != 2 or not _GLOBAL.fullmatch(name) or marks.is_floating_point():
            continue
        without = _weights(invocation, several[0], name, torch.zeros_like(marks))
        if without is None or not bool((without.abs() <= ZERO_WEIGHT).any()):
            continue
        for token in (marks.shape[1] - 1, 0):
            marked = torch.zeros_like(marks)
            marked[:, token] = 1
            weight = _weights(invocation, several[0], name, marked)
            if weight is None:
                continue
            for is_asking in sides:
                mine = (table.query if is_asking else table.key).token == token
                hidden = mine & (weight.abs() <= ZERO_WEIGHT)
                if bool(hidden.any()):
                    at = int(hidden.nonzero()[0])
                    query, key = int(table.query.token[at]), int(table.key.token[at])
                    message = (
                        f"with token {token} alone marked by {name}, query {query} does not see key {key}: by the "
                        f"documentation global tokens {'see all' if is_asking else 'are seen by all'}"
                    )
                    line = table.instance.scores_location
                    yield Finding("violation", "global-tokens", "mask", message, line, table.instance.module)
                    return


def _weights(invocation: Invocation, evidence: Evidence, name: str, marks: Tensor) -> Tensor | None:
    """The weights of an attention with other marks; None where it is not found again, or has not all pairs."""
    run = record_invocation(invocation, {**invocation.arguments, name: marks})
    found = None if run.error else masked_weights(evidence, run)
    return found if found is not None and bool(found.isfinite().all()) else None
