"""Masks that a call may be given and that were not tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.names import call_meaning

__all__ = ["unasked_mask_findings"]

OF_MASKS = frozenset({"mask", "padding", "lengths"})
"""What arguments mean that hide keys."""


def unasked_mask_findings(
    invocation: Invocation, *, are_tried: bool, others: Collection[str] = ()
) -> Iterator[Finding]:
    """Masks that were not tried, but for others, which were."""
    names = [*invocation.masks, *invocation.causal_flags, *invocation.lengths, *invocation.documents]
    names += [*invocation.boundaries, *invocation.prefixes]
    none = [each for each, value in invocation.arguments.items() if value is None and call_meaning(each) in OF_MASKS]
    if none:
        yield Finding("open", "mask-open", "mask", f"{', '.join(none)}: given as None, not exercised")
    elif not names:
        message = "no mask argument: masking by an argument not exercised"
        yield Finding("open", "no-mask-argument", "mask", message)
    elif not are_tried and (left := [each for each in names if each not in others]):
        yield Finding("open", "mask-open", "mask", f"{', '.join(left)}: not exercised")
