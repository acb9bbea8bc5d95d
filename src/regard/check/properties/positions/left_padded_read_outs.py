"""The one token of each sample that is read out, where batches may be padded on the left: it is one of the text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.evidence import with_fresh_tokens
from regard.check.properties.finding import Finding
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.positions.left_padding import PADDED, is_left_padded
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import SOFTMAXES
from regard.check.target import Invocation, Stream
from regard.check.target.mask_values import MASK_FORMS, write_mask

__all__ = ["left_padded_read_out_findings"]

MOVED = 1e-9
"""Beside the largest number of the output."""


def left_padded_read_out_findings(invocation: Invocation) -> Iterator[Finding]:
    """An output of each sample that hangs on the padding itself, or no longer on the last token of the text.

    It is read at a place that is counted from the left, as the first, or as many as there are real tokens.

    Args:
        invocation: a call of one sequence that may be given a mask, by its documentation of batches padded on the left.
    """
    if len(invocation.streams) != 1 or not is_left_padded(documentation_of(invocation.target)):
        return
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    if stream.batch_axis != 0 or stream.token_axes != (1,) or given.shape[1] < PADDED + 2:
        return
    for name in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]:
        for form in MASK_FORMS:
            if not _hides_padding(invocation, name, form):
                continue
            hangs = _hangs(invocation, stream, name, form)
            if hangs is None:
                return
            on_padding, on_last, on_last_of_all = hangs
            first = (
                f"batches may be padded on the left by its documentation; with {PADDED} tokens of padding, which "
                f"{name} hides, the output of a sample hangs on "
            )
            if on_padding:
                yield Finding("violation", "read-out-of-the-text", "output", f"{first}what stands in the padding")
            elif on_last_of_all and not on_last:
                yield Finding("violation", "read-out-of-the-text", "output", f"{first}its last token no longer")
            return


def _hangs(invocation: Invocation, stream: Stream, name: str, form: str) -> tuple[bool, bool, bool] | None:
    """Whether the output hangs on the padding, and on the last token, and on that one without padding.

    None where the mask is not taken in this form, or an output is one of each token.
    """
    given, fresh = invocation.arguments[stream.argument], with_fresh_tokens(invocation)[stream.argument]
    whole, text = (_allowed(given, number) for number in (0, PADDED))
    changed = {places: given.clone() for places in ("padding", "last")}
    changed["padding"][:, :PADDED] = fresh[:, :PADDED]
    changed["last"][:, -1] = fresh[:, -1]
    masks = {"text": write_mask(text, form), "whole": write_mask(whole, form)}

    def output(tokens: Tensor, mask: str) -> Tensor | None:
        run = record_invocation(invocation, {**invocation.arguments, stream.argument: tokens, name: masks[mask]})
        found = run.outputs[0].data if not run.error and run.outputs else None
        if found is None or not found.is_floating_point() or not bool(found.isfinite().all()):
            return None
        is_of_samples = found.ndim > 0 and len(found) == len(given) and given.shape[1] not in found.shape[1:]
        return found if is_of_samples else None

    before, after = output(given, "text"), {each: output(tokens, "text") for each, tokens in changed.items()}
    free, free_last = output(given, "whole"), output(changed["last"], "whole")
    if before is None or free is None or free_last is None:
        return None
    if any(each is None for each in after.values()):
        return None
    least = MOVED * max(1.0, float(before.abs().max()))
    moved = {each: bool(((one - before).abs() > least).any()) for each, one in after.items() if one is not None}
    return moved["padding"], moved["last"], bool(((free_last - free).abs() > least).any())


def _allowed(given: Tensor, padded: int) -> Tensor:
    """(samples, tokens): all but so many of the first."""
    return (torch.arange(given.shape[1]) >= padded).expand(given.shape[:2]).clone()


def _hides_padding(invocation: Invocation, name: str, form: str) -> bool:
    """Whether a mask in a form hides the first tokens from all behind them, which see themselves, in each softmax."""
    given = invocation.arguments[invocation.streams[0].argument]
    mask, tokens = write_mask(_allowed(given, PADDED), form), given.shape[1]
    run = record_invocation(invocation, {**invocation.arguments, name: mask})
    made = [each.outputs[0].data for each in run if each.name in SOFTMAXES]
    weights = [each for each in made if each.ndim > 2 and each.shape[-2:] == (tokens, tokens)]
    return bool(weights) and all(
        bool((each[..., PADDED:, :PADDED] <= ZERO_WEIGHT).all())
        and bool((each.diagonal(dim1=-2, dim2=-1)[..., PADDED:] > 0).all())
        for each in weights
    )
