"""Causal masks between two sequences: positions of a target are not held against those of its source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from regard.check.properties.documentation import name_and_documentation
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.patterns import FROM_FIRST_KEY, allowed_of, built_in_pattern
from regard.check.roles.contractions import Contraction
from regard.check.roles.influence import Influence
from regard.check.target import Invocation

__all__ = ["crossed_mask_findings"]

_IN_STEP = re.compile(
    r"monotonic|simultaneous|stream(?:ing|ed)|wait|align|synchron|online|real.?time|causal.?cross", re.I
)
"""Said of a decoder that reads its source while that goes on, or of two sequences with a common clock."""
CAUSAL = ("causal", FROM_FIRST_KEY)


def crossed_mask_findings(invocation: Invocation, samples: Influence, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A cross-attention with the causal mask of the target, in a model that makes its masks itself.

    Only where the source's tokens see each other without a mask: then what is hidden is in the keys that are seen, and
    the mask keeps nothing from anybody. A source that is read step by step has a causal encoder.

    Args:
        invocation: the call.
        samples: the influence of its samples.
        several: the evidence of its attentions.
    """
    if len(invocation.streams) < 2 or any(each.is_masked for each in several):
        return
    if _IN_STEP.search(name_and_documentation(invocation.target)):
        return
    sides = [(each, *_streams(each, samples)) for each in several if each.base.whole]
    encoded = {
        frozenset(keys)
        for each, queries, keys in sides
        if len(keys) == 1 and queries == keys and bool(allowed_of(each).all())
    }
    decoded = [keys for each, queries, keys in sides if queries == keys and _is_causal(each)]
    for each, queries, keys in sides:
        others = queries - keys
        if frozenset(keys) not in encoded or not others or not _is_causal(each):
            continue
        if not any(others <= own for own in decoded):
            continue
        (source,) = keys
        message = (
            f"tokens of {', '.join(sorted(others))} read tokens of {source} up to their own position alone: a causal "
            f"mask of one sequence, between two; the tokens of {source} themselves see one another without a mask"
        )
        instance = each.base.instance
        yield Finding("violation", "mask-of-one-sequence", "mask", message, instance.scores_location, instance.module)
        return


def _is_causal(evidence: Evidence) -> bool:
    """Whether each query of each head sees the keys up to its own position."""
    allowed = allowed_of(evidence).flatten(0, 1)
    if min(allowed.shape[1:]) < 2 or bool((allowed != allowed[:1]).any()):
        return False
    return built_in_pattern(allowed[0])[0] in CAUSAL


def _streams(evidence: Evidence, samples: Influence) -> tuple[set[str], set[str]]:
    """The inputs that the queries, and that the keys, are made of."""
    is_left = evidence.base.layout.queries_left
    scores = evidence.base.instance.scores
    return _of(scores, samples, left=is_left), _of(scores, samples, left=not is_left)


def _of(scores: Sequence[Contraction], samples: Influence, *, left: bool) -> set[str]:
    found = set()
    for each in scores:
        depends = samples.of(*(each.left_place if left else each.right_place)).flatten(1).any(1)
        found |= {source.stream for (source, _), moves in zip(samples.runs, depends.tolist(), strict=True) if moves}
    return found
