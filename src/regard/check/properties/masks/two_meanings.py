"""Masks that the code reads in two ways: 1 is of a key that is seen in one place, and of a hidden one in another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.filled_both_ways import fill_of_the_kept
from regard.check.properties.masks.outcome import MaskOutcome
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.argument import source_of, tree_of
from regard.check.target.mask_values import write_mask
from regard.check.trace.operation import Trace

__all__ = ["two_meanings_findings"]

_KERNEL = re.compile(r"scaled_dot_product|flash|sdpa|memory_efficient|\bflex_attention")
"""In a line that hands an attention to a kernel."""

_OF_HIDDEN_TOKENS = re.compile(
    r"mask_?token|masked_?(?:auto|image|lang|model|pred)|reconstr|imput|inpaint|\bmae\b", re.I
)
"""In code that returns what it predicts of hidden tokens, and nothing of those that are seen."""


def two_meanings_findings(
    invocation: Invocation, evidence: Evidence, outcome: MaskOutcome, name: str
) -> Iterator[Finding]:
    """A mask that hides keys, and of which another line of the code takes the other reading for granted.

    Args:
        invocation: the call.
        evidence: its attention.
        outcome: of the mask that hides what it blocks.
        name: the argument.
    """
    message = (
        _blanks_the_seen(invocation, outcome, name)
        or _is_none_where_all_are_hidden(invocation, outcome, name)
        or _fills_both_ways(evidence)
    )
    if message:
        yield Finding("violation", "mask-one-meaning", "mask", message, evidence.base.instance.scores_location)


def _blanks_the_seen(invocation: Invocation, outcome: MaskOutcome, name: str) -> str:
    """That what is returned is zero for exactly the tokens that a mask of samples and keys lets the others see."""
    seen = _seen_by(outcome)
    if seen is None or bool(seen.all()) or not bool(seen.any()):
        return ""
    if _OF_HIDDEN_TOKENS.search(source_of(invocation.target)):
        return ""
    opened = {**invocation.arguments, name: write_mask(torch.ones(outcome.value.shape, dtype=torch.bool), outcome.form)}
    runs = [record_invocation(invocation, {**invocation.arguments, name: outcome.value})]
    runs.append(record_invocation(invocation, opened))
    for returned, all_seen in zip(runs[0].outputs, runs[1].outputs, strict=False):
        sizes = returned.shape
        if len(sizes) != 3 or sizes[1] != seen.shape[1] or len(seen) not in (1, sizes[0]) or sizes != all_seen.shape:
            continue
        zeros = (returned.data == 0).all(2)
        is_marked_alone = bool((returned.data == returned.data[..., :1]).all())  # such as the mask itself
        if torch.equal(zeros, seen.expand(zeros.shape)) and not (is_marked_alone or bool((all_seen.data != 0).any())):
            meaning = "a key that is seen" if outcome.form in ("allowed", "keep", "keep, whole") else "a hidden key"
            return (
                f"1 in {name} is {meaning} in the attention, and what is returned is set to zero for the tokens that "
                "are seen, and not for the hidden ones"
            )
    return ""


def _seen_by(outcome: MaskOutcome) -> Tensor | None:
    """(samples or 1, keys): which keys a mask of this form lets be seen; None where it tells queries or heads apart."""
    sizes = zip(outcome.shape, outcome.value.shape, strict=True)
    if outcome.form == "added" or outcome.shape[-1] != "k" or any(size > 1 for axis, size in sizes if axis in "qh"):
        return None
    marked = outcome.value.bool().reshape(-1, outcome.value.shape[-1])
    return ~marked if outcome.form.startswith("block") else marked


def _is_none_where_all_are_hidden(invocation: Invocation, outcome: MaskOutcome, name: str) -> str:
    """That a kernel computes the attention without a mask where one hides all keys, and not where it hides none.

    As `if mask is None or mask.all()` before a mask of which True means a hidden key: who wrote it took True for a
    key that is seen.
    """
    if outcome.form == "added":
        return ""
    everything = torch.ones(outcome.value.shape, dtype=torch.bool)
    none, hidden, seen = (
        record_invocation(invocation, {**invocation.arguments, name: value}, lines=True)
        for value in (None, write_mask(~everything, outcome.form), write_mask(everything, outcome.form))
    )
    if none.error or hidden.error or seen.error or not _hands_to_a_kernel(none) or _hands_to_a_kernel(seen):
        return ""
    if not _hands_to_a_kernel(hidden):
        return ""
    return (
        f"where {name} hides all keys, the attention is computed as without a mask, and where it hides none, by the "
        f"other lines, which read it: 1 in {name} is taken for the one thing there and for the other here"
    )


def _hands_to_a_kernel(run: Trace) -> bool:
    """Whether the weights of a run are computed in a line that calls a kernel."""
    lines = [each.location.text for each in run if each.name.endswith("softmax") and each.location is not None]
    return bool(lines) and all(_KERNEL.search(each) for each in lines)


def _fills_both_ways(evidence: Evidence) -> str:
    """That a function hides scores where a mask is 1, and sets the weights made of them to zero where it is 0."""
    for each in ast.walk(tree_of(evidence.code)):
        if isinstance(each, ast.FunctionDef) and (name := fill_of_the_kept(each)):
            return (
                f"{each.name} hides the scores of one side of {name} and sets weights of the other side to zero: one "
                "of the two takes hidden keys for those that are seen"
            )
    return ""
