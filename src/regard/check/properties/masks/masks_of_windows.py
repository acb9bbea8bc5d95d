"""Masks of which each is of one window of a picture: the windows of a picture come one after the other in a batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask

__all__ = ["mask_of_window_findings"]

_SHIFTED = re.compile(r"\bswin\b|2103\.14030|shifted[- ]windows?", re.I)
"""In the documentation of an attention within windows."""
_PARTITION = re.compile(r"\w*(?:window\w*_?partition|partition\w*|to_windows|split_windows|cut_windows)\w*", re.I)
WINDOWS, PICTURES = 2, 2


def mask_of_window_findings(invocation: Invocation) -> Iterator[Finding]:
    """A window that is given the mask of another one, as soon as there are two pictures.

    Liu et al. 2021, "Swin Transformer", and its code: (pictures, windows) are joined to the samples of a batch, so that
    sample i has mask i % windows. A file that cuts windows in another order says how they stand.

    Args:
        invocation: a call of an attention of windows, which may be given masks.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or len(invocation.streams) != 1:
        return
    (stream,) = invocation.streams
    given = invocation.arguments[stream.argument]
    if not _SHIFTED.search(documentation_of(target)) or given.ndim != 3:
        return
    if (stream.batch_axis, *stream.token_axes) != (0, 1) or _are_windows_first(target):
        return
    samples = given[torch.arange(WINDOWS * PICTURES) % len(given)]
    plain = _first(invocation, {stream.argument: samples})
    if plain is None or plain.ndim != 3 or len(plain) != len(samples):
        return
    tokens = given.shape[1]
    allowed = torch.ones(WINDOWS, tokens, tokens, dtype=torch.bool)
    allowed[1, :, -1] = False
    for name in invocation.masks:
        for form in MASK_FORMS:
            masked = _first(invocation, {stream.argument: samples, name: write_mask(allowed, form)})
            if masked is None or masked.shape != plain.shape or not bool(masked.isfinite().all()):
                continue
            changed = differs(plain, masked).flatten(1).any(-1).tolist()
            if changed == [False, True, False, True]:
                return
            if changed == [False, False, True, True]:
                message = (
                    f"of {PICTURES} pictures of {WINDOWS} windows, which stand one after the other, samples 2 and 3 "
                    f"have the second of the {WINDOWS} masks in {name}: sample 1 is to have it, and sample 2 the first"
                )
                yield Finding("violation", "mask-of-its-window", "mask", message)
                return


def _first(invocation: Invocation, given: dict[str, Any]) -> Tensor | None:
    run = record_invocation(invocation, {**invocation.arguments, **given})
    return None if run.error or not run.outputs else run.outputs[0].data


def _are_windows_first(target: nn.Module) -> bool:
    """Whether a function of the file cuts pictures into windows of which the first ones are of several pictures."""
    pictures = torch.arange(2.0)[:, None, None, None].expand(2, 4, 4, 3).clone()
    names = getattr(type(target).forward, "__globals__", {})
    for name, cut in names.items():
        if not _PARTITION.fullmatch(name) or not callable(cut):
            continue
        with suppress(Exception):  # it takes other things
            windows = cut(pictures, 2)
            windows = windows[0] if isinstance(windows, tuple) else windows
            if len(windows) == 8 and bool((windows[:4] != 0).any()):
                return True
    return False
