"""Whether gradients can be computed: nothing that the backward pass needs is written over."""

from __future__ import annotations

import re

from regard.check.properties.finding import Finding

__all__ = ["overwritten"]

_OVERWRITTEN = re.compile(r"needed for gradient computation has been modified by an inplace operation")
"""What PyTorch says where a number that its backward pass needs was written over."""
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
