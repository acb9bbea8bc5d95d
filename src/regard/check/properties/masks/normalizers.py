"""Linear attention whose mask takes keys out of the sum of values, and leaves them in what this is divided by.

A mask that sets values to 0 alone hides no key: it still counts in the sum of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from regard.check.properties.finding import Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.weights.normalizers import normalizer_findings
from regard.check.roles.influence import influence_of, record_invocation
from regard.check.roles.instances import attentions_of, tagged_run
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.trace.operation import Trace

__all__ = ["masked_normalizer_findings"]

SHAPES = ("bk", "b1k", "b11k", "bk1", "b1k1")
"""Axes of a mask of padding: samples, keys."""


def masked_normalizer_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Whether the kept keys alone are in the sum of the weights, by the first mask that is read.

    Args:
        invocation: a call of linear attention without a mask.
        base: its run.
    """
    streams = invocation.streams
    if len(streams) != 1 or streams[0].batch_axis is None or len(streams[0].token_axes) != 1:
        return
    sizes = invocation.arguments[streams[0].argument].shape
    samples, tokens = sizes[streams[0].batch_axis], sizes[streams[0].token_axes[0]]
    for name in [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]:
        for shape, form in ((shape, form) for shape in SHAPES for form in MASK_FORMS):
            keys = padding_mask([samples, tokens], "end")
            value = write_mask(keys.reshape([{"b": samples, "k": tokens, "1": 1}[letter] for letter in shape]), form)
            masked = replace(invocation, arguments={**invocation.arguments, name: value})
            run = record_invocation(masked, lines=True)
            both = zip(base.outputs, run.outputs, strict=False)
            if run.error or all(torch.equal(one.data, two.data) for one, two in both):
                continue
            first = influence_of(masked, run, keep=lambda source: source.kind == "sample")
            instances = attentions_of(tagged_run(first, [streams[0].argument]))
            for found in normalizer_findings(masked, instances, are_some_hidden=True):
                message = f"with {name}, {found.message}, as keys that the mask hides still count"
                yield replace(found, message=message)
                return
            break
