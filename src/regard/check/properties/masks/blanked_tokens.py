"""Masks of tokens that are none: their queries, keys and values are set to zero, and their scores are not."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.properties.masks.settings import OF_ATTENTION
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["blanked_tokens"]

OF_TOKENS = re.compile("token|valid|frame|present|exist")
"""In names of masks that say which tokens there are."""
TOLERANCE = 1e-9


def blanked_tokens(
    invocation: Invocation, evidence: Evidence, outcomes: Sequence[MaskOutcome], name: str
) -> list[Finding]:
    """That a mask makes zeros of tokens, so that nothing of them is read, and hides no key.

    Each of them has the score 0 of every query, and a weight, as in SANA-WM; what it holds reaches no output. That is
    another function than attention of the shorter sequence, and is told as such.

    Args:
        invocation: a call without a mask.
        evidence: of its attention.
        outcomes: what the mask did in each form that it takes.
        name: of the mask; one that is named after attention or padding has to hide keys.
    """
    for outcome in outcomes if not OF_ATTENTION.search(name) and OF_TOKENS.search(name) else ():
        if "q" in outcome.shape or outcome.exact or not bool((evidence.base.query.sample >= 0).all()):
            continue
        hidden = ~evidence.base.dense(outcome.allowed, True).any(1).any(1)  # (samples, keys)
        if _asks_nothing(evidence, outcome, hidden) and _reaches_nothing(invocation, outcome, name, hidden):
            message = (
                f"{name} sets queries, keys and values of tokens to zero, and hides no key: nothing of such a token is "
                "read, but it has the score 0, and takes its share of the weights from the others"
            )
            return [Finding("design", "mask-form", "mask", message, evidence.base.instance.scores_location)]
    return []


def _asks_nothing(evidence: Evidence, outcome: MaskOutcome, hidden: Tensor) -> bool:
    """Whether each hidden token has the same weight for all that it sees, and they have the same one for others."""
    weight = evidence.base.dense(outcome.weight, 0.0)
    if not bool(hidden.any()) or weight.shape[-2] != weight.shape[-1] or not bool(weight.isfinite().all()):
        return False
    of_hidden = weight.movedim(1, -1)[hidden]  # (hidden queries, keys, heads)
    is_even = bool((of_hidden.amax(1) - of_hidden.amin(1) < TOLERANCE).all())
    read = weight.movedim(-1, 1)[hidden]  # (hidden keys, heads, queries)
    return is_even and bool((read > ZERO_WEIGHT).all())


def _reaches_nothing(invocation: Invocation, outcome: MaskOutcome, name: str, hidden: Tensor) -> bool:
    """Whether other numbers in hidden tokens change nothing that is returned."""
    given, others = {**invocation.arguments, name: outcome.value}, dict[str, Tensor]()
    for stream in invocation.streams:
        value = invocation.arguments[stream.argument]
        if stream.batch_axis is None or len(stream.token_axes) != 1 or not value.is_floating_point():
            return False
        changed = value.clone()
        of_tokens = changed.movedim((stream.batch_axis, stream.token_axes[0]), (0, 1))
        if of_tokens.shape[:2] != hidden.shape:
            return False
        of_tokens[hidden] = 1 - of_tokens[hidden]
        others[stream.argument] = changed
    before, after = (record_invocation(invocation, each) for each in (given, {**given, **others}))
    pairs = zip(before.outputs, after.outputs, strict=False)
    is_same = all(one.shape == two.shape and torch.allclose(one.data, two.data, 0.0, TOLERANCE) for one, two in pairs)
    return is_same and not before.error and not after.error
