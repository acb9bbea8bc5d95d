"""Masks of a source: what is hidden from the decoder is hidden from the encoder as well."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.masks.masked_weights import masked_weights
from regard.check.properties.masks.settings import NOT_OF_KEYS
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask

__all__ = ["hides_keys", "masks_of_keys", "source_mask_findings"]

SHAPES = ("bk", "b1k", "b11k", "bqk", "b1qk")
"""Axes of a mask of padding, for a cross-attention."""
_OF_THE_DECODER = re.compile("mem|cross|ctx|context|enc", re.I)
"""In the name of a mask that is of the cross-attention alone."""


def source_mask_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A mask that hides tokens of the source from the target, and that the source's own attention does not read.

    What is hidden comes through the tokens that are not: they have read it. An encoder that reads another mask of the
    call, or that the caller runs, is not judged.

    Args:
        invocation: a call of several sequences.
        several: the evidence of its attentions, in the order of the run.
    """
    if len(invocation.streams) < 2 or any(each.is_masked for each in several):
        return
    of_tokens = (all(int(part.token.min()) >= 0 for part in (each.base.query, each.base.key)) for each in several)
    several = [each for each, is_of_tokens in zip(several, of_tokens, strict=True) if is_of_tokens]
    sizes = [each.base.dense(each.base.weight).shape for each in several]
    crossed = [at for at, (_, _, queries, keys) in enumerate(sizes) if queries != keys and not _is_masked(several[at])]
    for at in crossed[:1]:
        samples, _, queries, keys = sizes[at]
        inner = [
            number for number in range(at) if sizes[number][2:] == (keys, keys) and not _is_masked(several[number])
        ]
        names = [each for each in invocation.masks if not NOT_OF_KEYS.search(each)]
        if not inner or any(_is_read(invocation, several[inner[0]], each) for each in names):
            continue
        hidden = ~padding_mask([samples, keys], "end")
        for name in [each for each in names if not _OF_THE_DECODER.search(each)]:
            if any(
                hides_keys(several[at], value, invocation, name, hidden)
                for value in masks_of_keys(hidden, samples, queries)
            ):
                own, other = (several[each].base.instance for each in (inner[0], at))
                message = (
                    f"{name} hides tokens from {other.module or 'the cross-attention'}, and "
                    f"{own.module or 'the attention of the source'} reads them all the same: "
                    "they come through the others"
                )
                yield Finding("violation", "mask-of-the-source", "mask", message, own.scores_location, own.module)
                return


def masks_of_keys(hidden: Tensor, samples: int, queries: int) -> Iterator[Tensor]:
    """A mask that hides some keys (samples, keys), in every form and shape."""
    for shape in SHAPES:
        sizes = {"b": samples, "1": 1, "q": queries, "k": hidden.shape[-1]}
        wide = (~hidden).reshape([samples, *[1] * (len(shape) - 2), hidden.shape[-1]])
        for form in MASK_FORMS:
            yield write_mask(wide.expand([sizes[letter] for letter in shape]).clone(), form)


def _is_masked(evidence: Evidence) -> bool:
    return not bool((evidence.base.weight > ZERO_WEIGHT).all())


def _is_read(invocation: Invocation, evidence: Evidence, name: str) -> bool:
    """Whether an attention has other weights, or is not found again, with some mask of its keys."""
    samples, _, queries, keys = evidence.base.dense(evidence.base.weight).shape
    for value in masks_of_keys(~padding_mask([samples, keys], "end"), samples, queries):
        run = record_invocation(invocation, {**invocation.arguments, name: value})
        weight = masked_weights(evidence, run)
        if not run.error and (weight is None or not torch.equal(weight, evidence.base.weight)):
            return True
    return False


def hides_keys(evidence: Evidence, value: Tensor, invocation: Invocation, name: str, hidden: Tensor) -> bool:
    """Whether a mask takes all weight from the keys that it hides, and from no other."""
    weight = masked_weights(evidence, record_invocation(invocation, {**invocation.arguments, name: value}))
    if weight is None:
        return False
    dense = evidence.base.dense(weight)
    if (dense.shape[0], dense.shape[-1]) != tuple(hidden.shape):
        return False  # its keys are others, as the latents of a Perceiver
    return torch.equal(dense.abs() <= ZERO_WEIGHT, hidden[:, None, None].expand(dense.shape))
