"""Whether a mask that may be handed over can hide later keys: one that says something of keys alone cannot."""

from __future__ import annotations

import torch

from regard.check.properties.finding import Evidence
from regard.check.properties.masks.drawn import causal_mask, padding_mask
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask

__all__ = ["may_hide_later_keys"]

OF_QUERIES = ("qk", "1qk", "bqk", "hqk", "nqk", "11qk", "b1qk", "bhqk", "bqkh", "qk1")
"""Axes: samples, heads, samples times heads, queries, keys."""
OF_KEYS = ("bk", "b1k", "b11k", "kb", "k")


def may_hide_later_keys(invocation: Invocation, evidence: Evidence) -> bool:
    """Whether a call takes a flag, or a mask with queries among its axes; also where none is known that it takes.

    Args:
        invocation: a call without a mask, or with one that has to be handed over and hides nothing.
        evidence: of its attention.
    """
    names = invocation.masks
    if invocation.causal_flags:
        return True
    samples, heads, queries, keys = evidence.base.dense(evidence.base.product).shape
    if samples < 2 or samples == queries:
        return bool(names)
    sizes = {"b": samples, "h": heads, "n": samples * heads, "q": queries, "k": keys, "1": 1}
    for name in names:
        if not any(_takes(invocation, evidence, name, shape, sizes) == "read" for shape in OF_KEYS):
            return True
        if any(_takes(invocation, evidence, name, shape, sizes) for shape in OF_QUERIES):
            return True
    return False


def _takes(invocation: Invocation, evidence: Evidence, name: str, shape: str, sizes: dict[str, int]) -> str:
    """Whether a call runs with masks of these axes: "read" where one changes weights; empty where it runs with none.

    One that makes outputs of more axes is none that it takes.
    """
    found, outputs = "", [each.shape for each in evidence.base.instance.run.trace.outputs]
    keys_last = shape.replace("k", "") + "k"
    counts = [sizes[letter] for letter in keys_last]
    pattern = causal_mask(counts, keys_last) if "q" in shape else padding_mask(counts, "end")
    for form in MASK_FORMS:
        value = write_mask(pattern.movedim(-1, shape.index("k")), form)
        run = record_invocation(invocation, {**invocation.arguments, name: value})
        if run.error or [each.shape for each in run.outputs] != outputs:
            continue
        found = "runs"
        weight = masked_weights(evidence, run)
        if weight is not None and not torch.equal(weight, evidence.base.weight):
            return "read"
    return found
