"""Masks beside that of the attention, which set what is returned of hidden tokens to zero and hide no key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.masks.settings import OF_ATTENTION
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation

__all__ = ["blanks_outputs"]

TOKEN = 1
"""Whose entries of a mask are turned."""
_PADDING = re.compile("pad(?:ding|ded)?", re.I)


def blanks_outputs(hides: Callable[[str], bool], invocation: Invocation, name: str) -> Finding | None:
    """That a mask without effect on weights sets outputs to zero, and one that is named after attention hides keys.

    As mask beside slf_attn_mask (FastSpeech 2): both are of the same padding. None of others.

    Args:
        hides: whether a mask hides exactly the keys that it blocks.
        invocation: the call.
        name: of the mask; one whose name says that it is of attention, or of keys, has to hide keys itself.
    """
    if _is_of_attention(name) or not any(_sets_to_zero(invocation, each) for each in _turned(invocation, name)):
        return None
    for other in [each for each in invocation.masks if each != name and _is_of_attention(each)]:
        if hides(other):
            message = f"{name} sets what is returned of a token to zero, and hides no key: {other} does"
            return Finding("note", "mask-open", "mask", message)
    return None


def _is_of_attention(name: str) -> bool:
    """Whether a name says it; padding alone may be that of what asks as well (SASRec)."""
    return OF_ATTENTION.search(_PADDING.sub("", name)) is not None


def _turned(invocation: Invocation, name: str) -> Iterator[dict[str, object]]:
    """The arguments with the entries of one token turned, along each axis of a mask of True and False."""
    mask = invocation.arguments.get(name)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return
    for axis in [each for each, size in enumerate(mask.shape) if size > TOKEN]:
        turned = mask.clone()
        turned.select(axis, TOKEN).logical_not_()
        yield {**invocation.arguments, name: turned}


def _sets_to_zero(invocation: Invocation, given: dict[str, object]) -> bool:
    """Whether other arguments make zeros of one token's outputs, which were none, and let those of others be."""
    before, after = (record_invocation(invocation, each).outputs for each in (invocation.arguments, given))
    for one, other in zip(before, after, strict=False):
        for axis in [each for each, size in enumerate(one.shape[:-1]) if size > TOKEN and one.shape == other.shape]:
            zeros = (other.data == 0).movedim(axis, 0).flatten(1).all(1)
            if bool(zeros[TOKEN]) and int(zeros.sum()) == 1 and bool((one.data != 0).any()):
                return True
    return False
