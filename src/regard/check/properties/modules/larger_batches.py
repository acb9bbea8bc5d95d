"""A batch twice as large: what a sample's output is does not hang on how many samples stand beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.check.properties.finding import Finding
from regard.check.roles.influence import differs, selections
from regard.check.target import Failed, Invocation
from regard.check.trace.operation import Trace

__all__ = ["larger_batch_findings"]


def larger_batch_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Outputs that are others where the same batch is handed over twice, one after the other, in one call.

    As where `view` was told the sizes in another order: parts that are as many as samples are then no samples. No
    sample need depend on another one. What chooses among all samples at once, as experts of a fixed capacity, is not
    asked.

    Args:
        invocation: a call in which no sample depends on another one, whose outputs are not drawn.
        base: its run.
    """
    given = _twice(invocation)
    if given is None or selections(base) or not base.outputs:
        return
    axis = invocation.streams[0].batch_axis
    try:
        outputs = invocation.outputs(invocation.run(given))
    except Failed:
        return
    if not outputs or axis is None:
        return
    one, both = base.outputs[0].data, outputs[0]
    samples = invocation.arguments[invocation.streams[0].argument].shape[axis]
    if axis >= one.ndim or one.shape[axis] != samples or both.shape != torch.cat([one, one], axis).shape:
        return
    moved = differs(torch.cat([one, one], axis), both.detach())
    if bool(moved.any()):
        sample = int(moved.movedim(axis, 0).flatten(1).any(1).nonzero()[0])
        message = (
            f"the output of sample {sample} is another in a batch of {2 * samples} than in a batch of {samples}, though"
            " its tokens are the same: axes of samples and of something else were taken for each other"
        )
        yield Finding("violation", "samples-apart", "output", message)


def _twice(invocation: Invocation) -> dict[str, Any] | None:
    """The arguments with every sample twice; None where something besides the sequences may be of samples too."""
    axes = {each.argument: each.batch_axis for each in invocation.streams}
    given = dict(invocation.arguments)
    for name, value in invocation.arguments.items():
        axis = axes.get(name)
        if isinstance(value, Tensor) and axis is not None:
            given[name] = torch.cat([value, value], axis)
        elif any(isinstance(each, Tensor) and each.numel() > 1 for each in tree_leaves(value)):
            return None
    return given
