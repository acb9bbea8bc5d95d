"""Sequences in one row that are told apart by positions that begin anew: beside a mask that hides nothing as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.target.names import call_meaning

__all__ = ["restarted_position_findings"]

FEWEST = 4
"""Tokens of which two sequences can be made."""
SAME = 1e-9
"""Beside the largest number of the output."""
_PACKED = re.compile(r"pack(?:ed|ing)|segment|document|boundar", re.I)
_TEXTS = re.compile(r'"""(.*?)"""|#+ *([^\n]*)', re.S)
"""Documentation and comments."""
_LEFT_TO_OTHERS = re.compile(
    r"\bmask\b[^.;]*\b(?:is|being|=|are)\b[^.;]*\bNone\b|\b(?:without|no|not given|only (?:if|when))\b[^.;]*\bmasks?\b"
    r"|\bmasks?\b[^.;]*\b(?:caller|takes? precedence|overrid\w+|instead)\b",
    re.I,
)
"""In these: that who hands a mask over parts the sequences by it."""


def restarted_position_findings(invocation: Invocation) -> Iterator[Finding]:
    """Sequences that positions keep apart without a mask, and not beside a mask that hides no token.

    Args:
        invocation: a call of one sequence with positions, without its mask.
    """
    if len(invocation.streams) != 1 or not invocation.masks:
        return
    (stream,), code = invocation.streams, code_of(invocation.target)
    given = invocation.arguments[stream.argument]
    if stream.batch_axis != 0 or stream.token_axes != (1,) or given.shape[1] < FEWEST or not _PACKED.search(code):
        return
    if any(_LEFT_TO_OTHERS.search(" ".join((one or other).split())) for one, other in _TEXTS.findall(code)):
        return
    told = [each for each in invocation.arguments if _are_positions(invocation, each, given.shape[1])]
    masks = [
        each for each in invocation.masks if invocation.arguments.get(each) is None and not NOT_OF_KEYS.search(each)
    ]
    if len(told) != 1:
        return
    name, cut = told[0], given.shape[1] // 2
    anew = torch.arange(given.shape[1]) - (torch.arange(given.shape[1]) >= cut) * cut
    places = anew.expand(invocation.arguments[name].shape).to(invocation.arguments[name].dtype)
    other = given.clone()
    other[:, 0] = given[:, -1]

    def second(tokens: Tensor, **others: Any) -> Tensor | None:
        run = record_invocation(invocation, {**invocation.arguments, stream.argument: tokens, **others})
        found = run.outputs[0].data if not run.error and run.outputs else None
        is_whole = found is not None and found.shape[:2] == given.shape[:2] and bool(found.isfinite().all())
        return found[:, cut:] if found is not None and is_whole else None

    if _is_same(second(given), second(other)) or not _is_same(
        second(given, **{name: places}), second(other, **{name: places})
    ):
        return  # the first sequence is not seen in one row, or is seen all the same
    for mask in masks:
        for form in MASK_FORMS:
            opened = {mask: write_mask(torch.ones(given.shape[:2], dtype=torch.bool), form)}
            if not _is_same(second(given), second(given, **opened)):
                continue
            beside = [second(tokens, **opened, **{name: places}) for tokens in (given, other)]
            if all(each is not None for each in beside) and not _is_same(*beside):
                message = (
                    f"where {name} begins anew, the second sequence of a row sees nothing of the first; beside {mask} "
                    "where this hides no token it does"
                )
                yield Finding("violation", "sequences-apart", "mask", message)
                return
            break


def _are_positions(invocation: Invocation, name: str, tokens: int) -> bool:
    value = invocation.arguments[name]
    is_whole = isinstance(value, Tensor) and value.dtype in (torch.long, torch.int32) and value.ndim > 0
    return is_whole and call_meaning(name) == "positions" and value.shape[-1] == tokens


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are numbers, and the same."""
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= SAME * max(1.0, float(one.abs().max())))
