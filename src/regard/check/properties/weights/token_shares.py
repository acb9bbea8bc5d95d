"""A share of each token that is returned alone, as a pointer network or a map of what is pooled returns it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.weights.weights_alone import returned_weights
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["token_share_findings"]

SAME = 1e-9


def token_share_findings(invocation: Invocation, run: TaggedRun) -> Iterator[Finding]:
    """What is found of a softmax over the tokens that is returned, where no query is multiplied by a key.

    Tokens in another order have the same shares, in that order: they are of scores that a network makes of each token,
    beside a query or the mean of all (Vinyals et al. 2015, "Pointer Networks"; Lin et al. 2017, "A Structured
    Self-attentive Sentence Embedding").

    Args:
        invocation: the call.
        run: in which no attention was found.
    """
    number = returned_weights(run)
    if number is None or invocation.completion is not None:
        return
    shares = run.trace.outputs[number].data
    softmax = next(each for each in run.trace if each.name in SOFTMAXES and _are_alike(each.outputs[0].data, shares))
    parts = shares.exp() if softmax.name == "_log_softmax" else shares
    streams = [each for each in invocation.streams if len(each.token_axes) == 1]
    for size in {invocation.tokens_of(each) for each in streams}:
        order = torch.arange(size).roll(1)
        moved = _of_moved_tokens(invocation, order, number)
        for axis in [axis for axis, found in enumerate(shares.shape) if found == size > 1]:
            expected = shares.index_select(axis, order)
            total = parts.sum(axis)
            if moved is None or _is_same(expected, shares) or not _is_same(moved, expected):
                continue
            if _is_same(total, torch.ones_like(total)):
                message = "weights alone: a softmax of a score for each token is returned, and no values are summed"
                yield Finding("design", "weights-alone", "weighted sum", message, softmax.location)
                yield Finding("holds", "softmax-over-keys", "weights", "over the tokens, sum 1", softmax.location)
                return


def _of_moved_tokens(invocation: Invocation, order: Tensor, number: int) -> Tensor | None:
    """An output where the tokens of each sequence of as many stand in another order; None where such a call fails."""
    given = dict(invocation.arguments)
    for each in invocation.streams:
        if len(each.token_axes) == 1 and given[each.argument].shape[each.token_axes[0]] == len(order):
            given[each.argument] = given[each.argument].index_select(each.token_axes[0], order)
    try:
        outputs = invocation.outputs(invocation.run(given))
    except Failed:
        return None
    return outputs[number].detach() if number < len(outputs) else None


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other.to(one.dtype), rtol=SAME, atol=SAME)


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers, in whichever order."""
    return one.numel() == other.numel() and torch.equal(one.flatten().sort().values, other.flatten().sort().values)
