"""Samples all of whose keys are hidden, where the documentation says that there may be such, or what they read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.hidden_keys import LEAST, hiding_values
from regard.check.target import Invocation, Stream
from regard.check.target.errors import Failed

__all__ = ["emptied_findings"]

_EMPTY = re.compile(
    r"\b(?:(?<!non-)(?<!not )empty|(?:without (?:any|a)|no) (?:valid|real|visible|unmasked|allowed)"
    r"|(?:fully|entirely|completely|all)[- ]?(?:masked|padded|padding|hidden|blocked)"
    r"|(?:all|every|each)\b[^.;]{0,30}\b(?:is|are)\s+(?:masked|padding|hidden|blocked|invalid|missing)"
    r"|(?:ha(?:s|ve)|with|of|are|is)\s+(?:no|zero)\s+(?!more\b)(?:\w+\s+){0,2}?(?:at all|left"
    r"|(?:keys?|items?|tokens?|neighbou?rs?|entr(?:y|ies)|elements?|documents?|objects?|memor(?:y|ies)|contexts?)\b))",
    re.I,
)
_MAY = re.compile(r"\b(?:may|might|can|could|sometimes|some (?:samples|rows|queries|examples)|possibl[ey])\b", re.I)
_NOT_A_NUMBER = re.compile(r"\bnan\b|\bnot a number\b|\bcaller\b", re.I)
_ZEROS = re.compile(
    r"\b(?:read|return|output|get|give|receive|yield|produce|contribut)\w*\b[^.;]{0,25}\b(?:zeros?|nothing)\b"
    r"|\b(?:outputs?|results?)\b[^.;]{0,20}\b(?:is|are|be|becomes?)\b[^.;]{0,15}\bzeros?\b"
    r"|\bzeros?\s+(?:is|are)\s+(?:read|returned|given|output)\b"
    r"|\badds?\s+nothing\b|\b(?:passe?[sd]?|goe?s|comes?|is|are|be|left|stays?)\s+(?:\w+\s+){0,2}?unchanged\b",
    re.I,
)
_OTHERWISE = re.compile(
    r"\bnot\s+(?:\w+\s+)?zero|\b(?:unlike|instead of|rather than|average|mean|uniform|nan|position|start|index|cache)",
    re.I,
)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


def emptied_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """What a sample whose keys are all hidden reads of them, by a mask that hides a single one, where this is told.

    A large negative number in the place of all its scores leaves each key the same weight, and minus infinity none that
    is a number. Where nothing is said of such a sample, either is usual; where it is said that there may be such, and
    no more, it reads numbers at least.

    Args:
        invocation: a call with one attention.
        evidence: of it.
    """
    text = documentation_of(invocation.target)
    empty = [each for each in map(" ".join, map(str.split, _SENTENCES.split(text))) if _EMPTY.search(each)]
    of_zeros = any(_ZEROS.search(each) and not _OTHERWISE.search(each) for each in empty)
    if not of_zeros and (_NOT_A_NUMBER.search(text) or not any(_MAY.search(each) for each in empty)):
        return
    read = [each for each in invocation.streams if each.role in ("context", "k", "v")] or invocation.streams
    if any(each.batch_axis != 0 or len(each.token_axes) != 1 for each in read):
        return
    shapes = {invocation.arguments[each.argument].shape[each.token_axes[0]] for each in read}
    samples, tokens = len(invocation.arguments[read[0].argument]), shapes.pop()
    if shapes or tokens < 2:
        return
    one = torch.ones(samples, tokens, dtype=torch.bool)
    one[0, -1] = False
    none = torch.ones_like(one)
    none[0] = False
    emptied = dict(hiding_values(invocation, none))
    for argument, values in hiding_values(invocation, one):
        for hides_one, hides_all in zip(values, emptied.get(argument, ()), strict=False):
            free, moved, left = (
                _moved(invocation, read, each) for each in ({}, {argument: hides_one}, {argument: hides_all})
            )
            if free is None or moved is None or free <= LEAST or moved > LEAST:
                continue
            if left is not None and left > (LEAST if of_zeros else sys.float_info.max):
                how = f"they change its output by up to {left:.2g}" if left < torch.inf else "its output is no number"
                message = (
                    f"where {argument} hides all keys of a sample, these reach it all the same: exchanged, {how}; "
                    f"by the documentation {'it reads zeros' if of_zeros else 'there may be such a sample'}"
                )
                yield Finding("violation", "empty-reads-zeros", "mask", message, evidence.base.instance.sums_location)
            return


def _moved(invocation: Invocation, read: list[Stream], given: dict[str, Tensor]) -> float | None:
    """By how much outputs of the first sample change with its last key; None where it cannot run."""
    arguments, others = {**invocation.arguments, **given}, dict[str, Tensor]()
    for stream in read:
        value = arguments[stream.argument].clone()
        last = value[0].select(stream.token_axes[0] - 1, -1)
        if not value.is_floating_point():
            return None
        last.copy_(torch.randn(last.shape, generator=torch.Generator().manual_seed(9), dtype=value.dtype))
        others[stream.argument] = value
    try:
        before, after = (
            invocation.outputs(replace(invocation, arguments=each).run())[0].detach()
            for each in (arguments, {**arguments, **others})
        )
    except (Failed, IndexError):
        return None
    if before.shape != after.shape or before.ndim < 2 or before.is_complex():
        return None
    own = len(invocation.streams) == 1 and before.ndim > 2  # the last token's own output is not judged
    change = (after - before)[0, : -1 if own else None].abs().max()
    return float(change.nan_to_num(torch.inf))
