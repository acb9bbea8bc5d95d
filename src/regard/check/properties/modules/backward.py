"""Whether gradients can be computed: nothing that the backward pass needs is written over."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import nn

from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import are_written, copied, kept_tensors

__all__ = ["backward_findings"]

_OVERWRITTEN = re.compile(r"needed for gradient computation has been modified by an inplace operation")
"""What PyTorch says where a number that its backward pass needs was written over."""
_OF_WHAT = re.compile(r"which is output \d+ of (?P<name>\w+?)(?:Backward\d*)?,")


def backward_findings(invocation: Invocation) -> Iterator[Finding]:
    """A call whose backward pass raises, as a number that it needs was written over in place.

    Args:
        invocation: a call of a module in eval(), that runs with gradients.
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or not invocation.gradients or invocation.arrays:
        return
    live = copied(target)
    leaves = [each.requires_grad_() for each in live.parameters() if each.is_floating_point()]
    kept = kept_tensors(live)
    try:
        outputs = [each for each in invocation.outputs(invocation.run(target=live)) if each.requires_grad]
    except Failed:
        return
    if not leaves or not outputs or are_written(kept):
        return
    try:
        torch.autograd.grad(outputs[0].sum(), leaves, allow_unused=True)
    except RuntimeError as error:
        if _OVERWRITTEN.search(str(error)) is None:
            return
        what = _OF_WHAT.search(str(error))
        of_what = f" of {what['name'].lower()}" if what is not None else ""
        message = (
            f"backward() raises: an output{of_what} that it needs has been written over in place, so that it cannot be "
            "trained"
        )
        yield Finding("violation", "gradients-computed", "output", message)
