"""Batches that are padded on the left: positions count the tokens that are no padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.code import comments_of_file, documentation_of_file, sentences_of
from regard.check.properties.documentation import documentation_of
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation, Stream
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.target.names import call_meaning

__all__ = ["PADDED", "is_left_padded", "left_padding_findings"]

PADDED = 2
"""Tokens of padding."""
LEFT_PADDED = re.compile(
    r"\bleft[-\s]padd(?:ed|ing)\b|\b(?:padd(?:ed|ing)|pads)\b(?:\s+\w+)?\s+(?:on|at|to|from)\s+the\s+(?:left|front|start)\b",
    re.I,
)
OF_REAL_TOKENS = re.compile(
    r"\bpositions?\b[^.;]*\b(?:counts?|counted|numbers?|numbered|starts?)\b[^.;]*"
    r"\b(?:real|non-?pad\w*|valid|actual|unpadded|unmasked)\b"
    r"|\bpositions?\b[^.;]*\b(?:index|place|rank)\b[^.;]*\b(?:among|of)\b[^.;]*"
    r"\b(?:real|non-?pad\w*|unpadded|unmasked)\b"
    r"|\b(?:not (?:depend|hang) on|independent of|invariant to|unaffected by|regardless of|whatever)\b[^.;]*"
    r"\bpad(?:ding|s)?\b"
    r"|\bpadding\b[^.;]*\b(?:not|never|nothing)\b[^.;]*\b(?:chang\w+|alter\w*|affect\w*|mov\w+|shift\w*|matters?|counts?)\b"
    r"|\b(?:same|identical|equal\w*)\b[^.;]*\balone\b[^.;]*\b(?:batch|padd(?:ed|ing))\b"
    r"|\b(?:same|identical|equal\w*)\b[^.;]*\b(?:batch|padd(?:ed|ing))\b[^.;]*\balone\b"
    r"|\b(?:is|are) (?:that|those|what)\b[^.;]*\b(?:prompt|text|row|sequence|sentence)s?\b[^.;]*\balone\b"
    r"|\bas (?:if|though)\b[^.;]*\b(?:unpadded|no padding|without (?:any )?padding|not padded)\b"
    r"|\b(?:same|identical|equal)\b[^.;]*\bwhether\b(?:\s+or\s+not)?[^.;]*\bpadd(?:ed|ing)\b"
    r"|\b(?:same|identical|equal)\b[^.;]*\b(?:with (?:and|or) without|without) (?:any )?padding\b"
    r"|\b(?:same|identical|equal\w*)\b[^.;]*\b(?:as|to)\b[^.;]*\b(?:alone|by itself|on its own|in a batch of one)\b",
    re.I,
)
"""Some models that are padded on the left count from the right, up to the length that all are padded to (SASRec)."""
NOT_MEANT = re.compile(
    r"\b(?:not|no|never|cannot|without|un\w+|instead|must|should|caller\w*|responsib\w+|shift\w*|if|unless)\b|n't", re.I
)
"""In the same sentence: that it is not taken, or that somebody else sees to it."""
WITH_OR_WITHOUT = re.compile(r"\bwith (?:and|or) without\b", re.I)
"""That something holds in both cases: no word of it says that padding is not taken."""
OF_POSITIONS = frozenset({"positions", "start", "rope", "cos", "sin"})
"""What may be handed over to say where a token stands."""
SAME = 1e-6
"""Beside the largest number of the output."""


def left_padding_findings(invocation: Invocation) -> Iterator[Finding]:
    """What comes out for tokens behind padding on the left, where the documentation says that it does not count.

    It has to be what comes out for these tokens alone. Relative positions are the same for both.

    Args:
        invocation: a call without a mask; positions that are handed over to it are those of the caller.
    """
    target = invocation.target
    told = "\n\n".join((documentation_of_file(target), comments_of_file(target), documentation_of(target)))
    if len(invocation.streams) != 1 or not is_left_padded(told):
        return
    if OF_REAL_TOKENS.search(" ".join(told.split())) is None:
        return
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    if stream.batch_axis != 0 or stream.token_axes != (1,) or given.shape[1] < PADDED + 2:
        return
    if any(call_meaning(each) in OF_POSITIONS for each in invocation.arguments):
        return
    for name in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]:
        for form in MASK_FORMS:
            gap = _gap(invocation, stream, name, form)
            if gap is not None and gap > SAME:
                message = (
                    f"by its documentation padding on the left does not count; what comes out for tokens behind "
                    f"{PADDED} tokens of it, which {name} hides, differs by {gap:.2g} of the largest number from what "
                    "comes out for these tokens alone"
                )
                yield Finding("violation", "positions-behind-padding", "positions", message)
            if gap is not None:
                return


def is_left_padded(text: str) -> bool:
    """Whether it says that batches are padded on the left, and not that somebody else sees to it."""
    sentences = (WITH_OR_WITHOUT.sub("whatever", each) for each in sentences_of(text, ".;:"))
    return any(LEFT_PADDED.search(each) and not NOT_MEANT.search(each) for each in sentences)


def _gap(invocation: Invocation, stream: Stream, name: str, form: str) -> float | None:
    """How far apart what comes out behind padding is from what comes out without; None where no padding is hidden."""
    given = invocation.arguments[stream.argument]
    allowed = torch.ones(given.shape[:2], dtype=torch.bool)
    allowed[:, :PADDED] = False
    mask = write_mask(allowed, form)
    others = given.clone()
    others[:, :PADDED] = with_fresh_tokens(invocation)[stream.argument][:, :PADDED]
    padded = _returned(invocation, {stream.argument: given, name: mask})
    changed = _returned(invocation, {stream.argument: others, name: mask})
    alone = _returned(invocation, {stream.argument: given[:, PADDED:], name: write_mask(allowed[:, PADDED:], form)})
    if padded is None or changed is None or alone is None or padded.shape[:2] != given.shape[:2]:
        return None
    padded, changed = padded[:, PADDED:], changed[:, PADDED:]
    largest = float(alone.abs().max())
    if alone.shape != padded.shape or not all(bool(each.isfinite().all()) for each in (padded, changed, alone)):
        return None
    if largest == 0 or float((padded - changed).abs().max()) > SAME * largest:
        return None
    return float((padded - alone).abs().max()) / largest


def _returned(invocation: Invocation, given: dict[str, Any]) -> Tensor | None:
    """The first thing that a call returns; None where it does not run, or returns no numbers."""
    run = record_invocation(invocation, {**invocation.arguments, **given})
    found = run.outputs[0].data if not run.error and run.outputs else None
    return found if found is not None and found.ndim > 1 and found.is_floating_point() else None
