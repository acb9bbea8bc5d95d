"""Masks that differ among heads on purpose: each head sees a part of the past."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from regard.check.location import CodeLocation
from regard.check.properties.finding import Finding

__all__ = ["pattern_of_each_head"]

CAUSAL = frozenset({"causal", "causal window", "sparse causal"})
"""Patterns in which every token sees itself and some of what is before it."""


def pattern_of_each_head(
    allowed: Tensor, pattern: Callable[[Tensor], tuple[str, str]], line: CodeLocation | None
) -> Finding:
    """The design of heads that each see another part of the past, in all samples the same; anything else is open.

    As in the Sparse Transformer (Child et al. 2019, section 4.3), one of whose heads sees the last keys and one every
    few keys.

    Args:
        allowed: (samples, heads, queries, keys), which differ among the heads.
        pattern: what names the pattern of one head.
        line: of the scores.
    """
    names = [pattern(each)[0] for each in allowed[0]]
    if not {*names} <= CAUSAL or not bool((allowed == allowed[:1]).all()):
        return Finding("open", "mask-unknown", "mask", "which keys are blocked differs among heads", line)
    listed = ", ".join(f"head {head} {name}" for head, name in enumerate(names))
    return Finding("design", "mask-pattern", "mask", f"its own mask, one for each head: {listed}", line)
