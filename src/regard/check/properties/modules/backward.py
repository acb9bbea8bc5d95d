"""Whether gradients can be computed: nothing that the backward pass needs is written over."""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from regard.check.properties.caches.promised_memory import is_made_for_generation
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.errors import Failed
from regard.check.target.preparation import are_written, copied, in_mode, kept_tensors

__all__ = ["backward_findings", "overwritten", "training_findings"]

_OVERWRITTEN = re.compile(r"needed for gradient computation has been modified by an inplace operation")
"""What PyTorch says where a number that its backward pass needs was written over."""
_DROPS_IN_PLACE = re.compile(r"\bdropout\w*_\(|\bdropout\w*\([^()\n]*inplace\s*=\s*True", re.I)
"""In the code of a module: numbers that are dropped while it is trained, in the tensor that they stand in."""
_OF_WHAT = re.compile(r"which is output \d+ of (?P<name>\w+?)(?:Backward\d*)?,")


def overwritten(error: Exception) -> Finding | None:
    """What is found of a backward pass that raises as a number that it needs was written over in place; else None.

    Args:
        error: what it raised.
    """
    if _OVERWRITTEN.search(str(error)) is None:
        return None
    what = _OF_WHAT.search(str(error))
    of_what = f" of {what['name'].lower()}" if what is not None else ""
    message = (
        f"its backward pass raises: an output{of_what} that it needs has been written over in place, so that nothing "
        "is trained"
    )
    return Finding("violation", "gradients-computed", "output", message)


def training_findings(invocation: Invocation) -> list[Finding]:
    """The same of a step of training, where numbers are dropped in place: in evaluation nothing is written then.

    Args:
        invocation: the call.
    """
    if not isinstance(invocation.target, nn.Module) or not _drops_in_place(invocation.target):
        return []
    live = copied(invocation.target)
    return _of_pass(invocation, in_mode(live, training=True))


def backward_findings(invocation: Invocation) -> list[Finding]:
    """The same of the backward pass of a module, for what is judged by no parameters of its own."""
    if not isinstance(invocation.target, nn.Module):
        return []
    return _of_pass(invocation, copied(invocation.target)) or training_findings(invocation)


def _drops_in_place(module: nn.Module) -> bool:
    """Whether some layer drops numbers in the tensor that it is handed, with a share that is above zero."""
    layers = [each for each in module.modules() if isinstance(each, _DropoutNd)]
    if any(each.inplace and each.p > 0 for each in layers):
        return True
    kinds = {type(each) for each in module.modules() if not type(each).__module__.startswith("torch.")}
    return any(_DROPS_IN_PLACE.search(source_of(each)) for each in kinds)


def _of_pass(invocation: Invocation, live: nn.Module) -> list[Finding]:
    """What is found of one backward pass of a copy of the target."""
    kept = kept_tensors(live)
    try:
        with torch.enable_grad():
            outputs = [each for each in invocation.outputs(invocation.run(target=live)) if each.requires_grad]
    except Failed:
        return []
    learned = [each for each in live.parameters() if each.requires_grad]
    if not outputs or not learned:
        return []
    try:
        torch.autograd.grad([each.sum() for each in outputs], learned, allow_unused=True)
    except Exception as error:  # a backward pass of the code's own may raise anything
        found = None if are_written(kept) or is_made_for_generation(live) else overwritten(error)
        return [] if found is None else [found]
    return []
