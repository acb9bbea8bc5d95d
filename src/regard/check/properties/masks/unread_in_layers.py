"""Masks that a model reads elsewhere, as in a mean over its tokens, and that its attentions are given in vain."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.unread import thrown_away_mask
from regard.check.properties.masks.unread_arguments import unread_mask
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["unread_in_layers"]


def unread_in_layers(
    invocation: Invocation, several: Sequence[Evidence], name: str, outcomes: Sequence[MaskOutcome]
) -> Finding | None:
    """That a mask changes no weight, as no line of the attentions reads theirs, or as masked scores are thrown away.

    Args:
        invocation: the call.
        several: the evidence of its attentions.
        name: of the mask.
        outcomes: of masks, none of which changes a weight of any of them.
    """
    for value in [each.value for each in outcomes[:1]]:
        run = record_invocation(invocation, {**invocation.arguments, name: value}, lines=True)
        thrown_away = None if run.error else thrown_away_mask(several[0], run)
        if thrown_away is not None:
            message = f"{name} changes no weight: scores are masked, and nothing is done with them"
            return Finding("violation", "mask-argument", "mask", message, thrown_away.location)
    within = [_unread_within(invocation, each) for each in several]
    if None in within:
        return None
    return within[0] and Finding(
        "violation",
        "mask-argument",
        "mask",
        f"{name} changes no weight: no line of {several[0].base.instance.module} reads its {within[0].message}",
        within[0].location,
    )


def _unread_within(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """The mask that the module of an attention takes and no line of it reads."""
    path, owner = evidence.base.instance.module, invocation.target
    if not path or not isinstance(owner, nn.Module):
        return None
    try:
        unread = unread_mask(owner.get_submodule(path))
    except AttributeError:
        return None
    return None if unread is None else Finding("note", "mask-argument", "mask", *unread)
