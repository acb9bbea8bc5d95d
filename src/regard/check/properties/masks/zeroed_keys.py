"""Masks that hide keys whose tokens are zeros, as the padding of a sequence is where the code looks for it (SASRec)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["zeroed_keys"]


def zeroed_keys(
    invocation: Invocation, evidence: Evidence, outcomes: Sequence[MaskOutcome], name: str
) -> list[Finding]:
    """That a mask hides exactly the keys that it blocks where their tokens are zeros, and does not without the mask.

    Args:
        invocation: a call without a mask.
        evidence: of its attention.
        outcomes: what the mask did in each form that it takes, to tokens that are none.
        name: of the mask.
    """
    table = evidence.base
    streams = {table.streams[each] for each in table.key.stream.tolist() if each >= 0}
    keys = [each for each in invocation.streams if each.argument in streams]
    several = [each for each in outcomes if "q" not in each.shape and not each.exact]
    if len(keys) != 1 or keys[0].batch_axis is None or len(keys[0].token_axes) != 1:
        return []
    axes = (keys[0].batch_axis, keys[0].token_axes[0])
    tokens = invocation.arguments[keys[0].argument]
    for outcome in several if tokens.is_floating_point() else ():
        hidden = ~table.dense(outcome.allowed, True).any(1).any(1)  # (samples, keys)
        zeroed = tokens.clone()
        of_tokens = zeroed.movedim(axes, (0, 1))
        if not bool(hidden.any()) or of_tokens.shape[:2] != hidden.shape:
            continue
        of_tokens[hidden] = 0
        given = {**invocation.arguments, keys[0].argument: zeroed}
        with_mask, without = (
            _is_hidden(evidence, invocation, each) for each in ({**given, name: outcome.value}, given)
        )
        if with_mask is None or without is None or not bool(outcome.judged.any()):
            continue
        judged, blocked = outcome.judged, ~outcome.allowed
        if torch.equal(with_mask[judged], blocked[judged]) and not torch.equal(without[judged], blocked[judged]):
            message = f"{name} hides exactly the keys that it blocks where their tokens are zeros, as the code asks"
            return [Finding("holds", "mask-form", "mask", message)]
    return []


def _is_hidden(evidence: Evidence, invocation: Invocation, given: dict[str, object]) -> Tensor | None:
    """(scores): whether a key has no weight in a call with other arguments."""
    weight = masked_weights(evidence, record_invocation(invocation, given))
    return None if weight is None else weight.abs() <= ZERO_WEIGHT
