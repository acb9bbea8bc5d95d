"""What the documentation says that 1 in a mask means, and what the code takes it for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from regard.check.properties.documentation import documentation_of, mask_meaning
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.mask_outcome import MaskOutcome
from regard.check.target import Invocation
from regard.check.target.signature import source_of

__all__ = ["asks_for_axes", "documented_forms", "documented_mask_findings"]

OF_ALLOWED, OF_BLOCKED = ("allowed", "keep", "keep, whole"), ("blocked", "block", "block, whole")
"""Forms in which True or 1 means one or the other."""


def asks_for_axes(invocation: Invocation, name: str) -> bool:
    """Whether the code tells masks apart by their number of axes."""
    asked = rf"\b{re.escape(name)}\.(?:ndim|dim\(\))|len\({re.escape(name)}\.(?:shape|size\(\))\)"
    return re.search(asked, source_of(invocation.target)) is not None


def documented_forms(invocation: Invocation, name: str) -> tuple[str, ...]:
    """The forms of a mask that the documentation means; empty where it says nothing."""
    return {"allowed": OF_ALLOWED, "blocked": OF_BLOCKED}.get(_meaning(invocation, name) or "", ())


def documented_mask_findings(
    invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, outcomes: Sequence[MaskOutcome], name: str
) -> Iterator[Finding]:
    """A mask that is read in another way than the documentation says.

    Args:
        invocation: the call.
        evidence: its attention.
        outcome: of the mask that hides what it blocks.
        outcomes: of all masks that were tried: those that the documentation means were tried first.
        name: the argument.
    """
    meaning = _meaning(invocation, name)
    if meaning is None:
        return
    meant, others = (OF_ALLOWED, OF_BLOCKED) if meaning == "allowed" else (OF_BLOCKED, OF_ALLOWED)
    said = f"its documentation says that 1 in {name} means {meaning}"
    if outcome.form in others:
        message = f"{said}; the code takes it for {'blocked' if meaning == 'allowed' else 'allowed'}"
    elif (
        outcome.form == "added"
        and _meaning(invocation, name, of_one=True) == meaning
        and not asks_for_axes(invocation, name)
        and any(each.form in meant and bool(each.leaks.any()) for each in outcomes)
    ):
        message = f"{said}; the code adds it to the scores: it hides no key"
    else:
        return
    yield Finding("violation", "mask-as-documented", "mask", message, evidence.base.instance.scores_location)


def _meaning(invocation: Invocation, name: str, *, of_one: bool = False) -> str | None:
    text = documentation_of(invocation.target)
    return mask_meaning(text, name, is_only=len(invocation.masks) == 1, of_one=of_one)
