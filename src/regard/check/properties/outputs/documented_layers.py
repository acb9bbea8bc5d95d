"""Networks whose documentation says that they end with a matrix, and whose last step cuts off what is negative."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.target import Invocation
from regard.check.target.errors import Failed
from regard.check.target.preparation import copied

__all__ = ["documented_layer_findings"]

_MATRIX = r"(?:linear|dense|conv(?:olution)?(?:1d)?|fc|fully[- ]connected)\w*"
_THEN = r"\s*(?:\+|->|→|—>|=>|,?\s*(?:and\s+)?then)\s*"
_CHAIN = re.compile(
    rf"\b{_MATRIX}{_THEN}(?:re-?lu|gelu|activation)\b{_THEN}(?:dropout{_THEN})?{_MATRIX}\b"
    rf"(?!(?:\s*\([^()]*\))?{_THEN}(?:re-?lu|gelu|activation))",
    re.I,
)
"""Of a network: a matrix, a function that bends, and a matrix; nothing bends after it."""
_MORE = re.compile(r"\b(?:residual|skip|shortcut|added|sum|final|last|output)\b", re.I)
"""What says of something that comes after it: a block of a picture's network may cut off what it has added."""
MANY = 64
"""Numbers, of which no matrix leaves all on one side of zero."""
SHARE = 0.05
"""Of them that are cut off."""


def documented_layer_findings(invocation: Invocation) -> Iterator[Finding]:
    """A module that says linear + ReLU + linear, and returns no negative number: the ReLU stands behind both.

    Beside a residual connection it can only add to the stream.

    Args:
        invocation: a call.
    """
    target = invocation.target
    if not isinstance(target, nn.Module):
        return
    live, returned = copied(target), dict[str, Tensor]()
    for path, module in live.named_modules():
        is_own = type(module).__module__.partition(".")[0] != "torch"
        said = " ".join(documentation_of(module).split())
        if is_own and _CHAIN.search(said) and not _MORE.search(said):
            module.register_forward_hook(partial(_keep, returned, path))
            returned[path] = torch.zeros(0)
    if not returned:
        return
    try:
        with torch.no_grad():
            invocation.run(target=live)
    except Failed:
        return
    for path, output in returned.items():
        is_cut = output.numel() >= MANY and bool((output >= 0).all())
        if is_cut and SHARE < float((output == 0).double().mean()) < 1 - SHARE:
            name = path or type(live).__name__
            message = (
                f"{name} is documented to end with a matrix, and returns no negative number: a ReLU follows its last "
                "matrix as well"
            )
            yield Finding("violation", "ends-as-documented", "block", message)
            return


def _keep(returned: dict[str, Tensor], path: str, module: nn.Module, given: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.is_floating_point():
        returned[path] = output.detach()
