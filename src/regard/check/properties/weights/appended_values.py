"""Values for weights that are returned alone, so that they are held against what is asked of every attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.catalog import PROPERTIES
from regard.check.properties.finding import Finding
from regard.check.target import Invocation, Stream
from regard.check.target.running import APPENDED

__all__ = ["is_of_values", "with_appended_values"]

OF_VALUES = frozenset({"weighted sum", "heads joined", "projected", "output"})
"""Steps of the definition that such code does not have: what is found in them is ours."""
WIDTHS = (7, 11, 13)
"""Of the values: one that no other axis has."""


def is_of_values(finding: Finding) -> bool:
    """Whether it says something of the values, or of what comes after them."""
    known = PROPERTIES.get(finding.property)
    return finding.step in OF_VALUES or (known is not None and known.step == "v")


def with_appended_values(
    invocation: Invocation, number: int, weights: Tensor, *, are_scores: bool = False
) -> Invocation | None:
    """The same call, whose weights are multiplied by values after it; None where it is not known whose they are.

    Args:
        invocation: a call that returns weights.
        number: which of its outputs they are.
        weights: as they are returned.
        are_scores: whether they are the scores, of which a softmax over the keys is taken first.
    """
    asked = [each for each in invocation.streams if each.role in ("k", "context")] or list(invocation.streams)
    keys = asked[0]
    if len(asked) != 1 or len(keys.token_axes) != 1 or invocation.arrays:
        return None
    shape = invocation.arguments[keys.argument].shape
    samples = 1 if keys.batch_axis is None else shape[keys.batch_axis]
    tokens = shape[keys.token_axes[0]]
    if weights.ndim > 1 and weights.shape[-1] == 1 != tokens:
        weights = weights.squeeze(-1)
    batched = keys.batch_axis is not None
    copies = weights.shape[0] // samples if batched and weights.ndim == 3 else 1
    if weights.shape[-1] != tokens or (batched and weights.shape[0] != copies * samples):
        return None
    width = next(each for each in WIDTHS if each not in {*shape, *weights.shape})
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(samples, tokens, width, generator=generator, dtype=torch.float64)
    role = "v" if keys.role == "k" else keys.role
    stream = Stream(APPENDED, role, 0, (1,))
    if not batched:
        values, stream = values[0], Stream(APPENDED, role, None, (0,))

    def completion(result: Any, appended: Tensor) -> Tensor:
        found = invocation.outputs(result)[number]
        if are_scores:
            found = (found.squeeze(-1) if found.shape[-1] == 1 != tokens else found).softmax(-1)
        return _read(found, appended, tokens, batched=batched, copies=copies)

    return replace(
        invocation,
        arguments={**invocation.arguments, APPENDED: values},
        streams=[*invocation.streams, stream],
        completion=completion,
        resized=lambda _: iter(()),
        relaid=lambda _: iter(()),
    )


def _read(weights: Tensor, values: Tensor, tokens: int, *, batched: bool, copies: int) -> Tensor:
    """What queries read by weights (..., queries, keys), or by those of one query (samples, keys)."""
    if weights.ndim > 1 and weights.shape[-1] == 1 != tokens:
        weights = weights.squeeze(-1)
    if batched:
        values = values.repeat_interleave(copies, 0)
        one = weights.ndim == 2
        values = values[(slice(None), *[None] * (weights.ndim - 3))]
    else:
        one = weights.ndim == 1
    return (weights.unsqueeze(-2) @ values).squeeze(-2) if one else weights @ values
