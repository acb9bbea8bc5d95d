"""Masks of the caller that a call writes into."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["written_mask_findings"]

HIDDEN = -1e4
"""What is added to the score of a hidden key is this or less: how much less makes no other mask."""


def written_mask_findings(invocation: Invocation, name: str, value: Tensor) -> Iterator[Finding]:
    """The first line that makes another mask of the caller's own, as where what is always hidden is hidden in it too.

    Other layers, and other calls, are handed the same tensor. Rows that hide all are often opened in it: that makes no
    other mask of one that has none.

    Args:
        invocation: a call without the mask.
        name: the argument.
        value: a mask.
    """
    run = record_invocation(invocation, {**invocation.arguments, name: value}, lines=True)
    given = run.arguments.get(name)
    if run.error or given is None:
        return
    for operation in run:
        for each in operation.written:
            before = next((one.data for one in operation.inputs if one.storage == each.storage), None)
            if each.storage == given.storage and before is not None and _are_others(before, each.data):
                message = f"the call writes into {name}, its caller's: whoever is handed it later hides other keys"
                yield Finding("violation", "mask-kept", "mask", message, operation.location)
                return


def _are_others(before: Tensor, after: Tensor) -> bool:
    """Whether two tensors are no masks of the same meaning."""
    one, other = (each.clamp(min=HIDDEN) if each.is_floating_point() else each for each in (before, after))
    return not torch.equal(one, other)
