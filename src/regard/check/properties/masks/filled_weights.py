"""Weights that a mask fills with -inf, as where it comes behind the softmax: no mask leaves numbers then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regard.check.properties.finding import Finding
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import SOFTMAXES, AttentionInstance
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["filled_weight_findings"]

LEAST_AXES = 3
"""Of weights: samples, queries and keys."""


def filled_weight_findings(invocation: Invocation, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Masks with one number for each weight, that leave none of the output a number, whichever of its sides hides.

    Keys may be other than the tokens, as summaries of them: such a mask is as wide as what the softmax returns. One
    that marks the first key alone, and its negation, both leave each query a key, or one of them does where other keys
    are hidden as well.

    Args:
        invocation: a call.
        instances: the attentions in it.
    """
    if not instances:
        return
    trace = instances[0].run.trace
    shapes = dict.fromkeys(each.outputs[0].data.shape for each in trace if each.name in SOFTMAXES and _is_of_rows(each))
    for name in invocation.masks:
        if invocation.arguments.get(name) is not None or not _are_numbers(trace):
            continue
        for shape in shapes:
            if len(shape) < LEAST_AXES or shape[-1] < 2:
                continue
            marked = (torch.arange(shape[-1]) == 0).expand(shape)
            runs = [
                record_invocation(invocation, {**invocation.arguments, name: each}, lines=True)
                for each in (marked, ~marked)
            ]
            if any(each.error or _are_numbers(each) for each in runs):
                continue
            fills = [each for each in runs[0] if each.name.rstrip("_") == "masked_fill"]
            first = next((each.index for each in runs[0] if each.name in SOFTMAXES), 0)
            if fills and fills[-1].index < first:
                continue  # it fills scores, and has other axes than these
            message = (
                f"{name} makes NaN or infinity of the output, whether it marks the first key of each query or all "
                "others: it fills the weights, behind the softmax, and not the scores"
            )
            yield Finding("violation", "blocked-scores", "mask", message, fills[-1].location if fills else None)
            return


def _is_of_rows(softmax: Operation) -> bool:
    """Whether a softmax runs over the last axis, so that keys are the last."""
    axes = [each for each in softmax.args if type(each) is int]
    return axes[:1] in ([-1], [softmax.outputs[0].data.ndim - 1])


def _are_numbers(run: Trace) -> bool:
    return all(bool(each.data.isfinite().all()) for each in run.outputs)
