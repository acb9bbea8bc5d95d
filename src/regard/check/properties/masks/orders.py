"""Orders of tokens: whether none sees a later one in a mask of no known pattern, and whether an encoder's have one."""

from __future__ import annotations

import re

from torch import Tensor

from regard.check.properties.documentation import promises_causal_mask
from regard.check.properties.finding import Evidence, Finding
from regard.check.target.names import is_encoded

__all__ = ["encoded_sequence", "later_key", "unaligned"]


def later_key(evidence: Evidence, allowed: Tensor) -> Finding | None:
    """A later key that is seen, in a mask that says that it is causal, or that hides the next token; None elsewhere.

    Args:
        evidence: of the attention.
        allowed: (queries, keys): which keys have a weight.
    """
    queries, keys = allowed.shape
    if queries != keys or not bool(allowed.triu(1).any()):
        return None
    line = evidence.base.instance.scores_location
    who, pair = _says_causal(evidence), _see_each_other(allowed)
    if who and pair is not None:
        message = (
            f"its {who} says that it is causal: query {pair[0]} sees key {pair[1]}, a later one, and query {pair[1]} "
            f"sees key {pair[0]}"
        )
        return Finding("violation", "mask-pattern", "mask", message, line)
    if who and bool(allowed.diagonal().all()) and not bool(allowed.tril(-1).any()):
        message = (
            f"its {who} says that it is causal: of other tokens a query sees later ones alone, and none that is before "
            "it: the causal mask is the wrong way round"
        )
        return Finding("violation", "mask-pattern", "mask", message, line)
    distance = _first_later_distance(allowed)
    if distance:
        message = (
            f"a query sees the token that is {distance} later, and not the next one: of what comes later it sees other "
            "distances than of what comes before"
        )
        return Finding("violation", "mask-pattern", "mask", message, line)
    return None


_RIGHT = re.compile(r"\bright[- ]align|\balign\w* (?:to|at|on) the (?:right|end)\b|\bbottom[- ]right\b", re.I)
_OTHERWISE = re.compile(r"\b(?:not|no|never|unlike|instead|rather|top[- ]left)\b|n't", re.I)


def unaligned(evidence: Evidence, pattern: str) -> Finding | None:
    """A causal mask of fewer queries than keys that begins at the first key, in code that says it ends at the last.

    Args:
        evidence: an attention.
        pattern: the name of its mask.
    """
    said = [each for each in evidence.code.splitlines() if _RIGHT.search(each)]
    if "from the first key on" not in pattern or not any(_OTHERWISE.search(each) is None for each in said):
        return None
    message = (
        "it says that queries and keys are aligned at the right, and its causal mask begins at the first key: the last "
        "query does not see the last keys"
    )
    return Finding("violation", "mask-pattern", "mask", message, evidence.base.instance.scores_location)


def encoded_sequence(evidence: Evidence) -> str:
    """The name of the sequence that its keys are of, where that is what an encoder returned, and queries are not.

    Or where the path of its module says that it is a cross-attention.
    """
    base = evidence.base
    queries, keys = ({*each.stream.tolist()} for each in (base.query, base.key))
    if len(keys) != 1 or queries & keys or not (0 <= min(keys) < len(base.streams)):
        return ""
    name = base.streams[min(keys)]
    return name if is_encoded(name) or "cross" in base.instance.module.lower() else ""


def _says_causal(evidence: Evidence) -> str:
    """What says without a condition that no token sees a later one; keys that are no tokens' may be seen by all."""
    has_memory = bool(evidence.base.with_sink.all())
    if evidence.is_documented_causal or (has_memory and evidence.documents_causal_beside_memory):
        return "documentation"
    if evidence.names_causal:
        return "name"
    is_fixed = not evidence.hides_on_demand
    return "mask's documentation" if is_fixed and promises_causal_mask(evidence.code) else ""


def _see_each_other(allowed: Tensor) -> tuple[int, int] | None:
    """The first two tokens that see each other: whatever order they have, one of them sees a later one."""
    both = (allowed & allowed.t()).triu(1).nonzero()
    return (int(both[0, 0]), int(both[0, 1])) if len(both) else None


def _first_later_distance(allowed: Tensor) -> int:
    """Of a mask by distance alone, how far later the nearest later token is that is seen; 0 where it is by design.

    The next token is hidden, as in causal masks. Distances that are alike before and after a token are a dilated
    window; those that are alike around the ends are a window of a circle.
    """
    count = len(allowed)
    diagonals = {distance: allowed.diagonal(-distance) for distance in range(1 - count, count)}
    if any(bool(each.any()) and not bool(each.all()) for each in diagonals.values()):
        return 0
    seen = {distance for distance, each in diagonals.items() if bool(each.any())}
    later, earlier = ({sign * each for each in seen if sign * each > 0} for sign in (-1, 1))
    is_round = all((each in seen) == (each - count in seen) for each in range(1, count))
    if not {0, 1} <= seen or 1 in later or later == earlier or is_round:
        return 0
    return next((each for each in sorted(later) if each < count - 1), 0)
