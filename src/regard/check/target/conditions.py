"""What is a sequence, and what is one vector of each sample that steers a block, as that of a time and a label."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from regard.check.target.documented_shapes import documented_letters, documented_shape

__all__ = ["is_applied", "is_condition", "is_sequence"]

_MODULATIONS = r"(?:ada_?ln|ada_?norm|modulation|film)"


def is_applied(source: str, name: str) -> bool:
    """Whether the code calls a module with it alone, as with a sequence that is projected, or it is a condition."""
    is_alone = re.search(rf"\bself\.\w+\(\s*{re.escape(name)}\s*\)", source) is not None
    return is_alone or is_condition(source, name)


def is_condition(source: str, name: str) -> bool:
    """Whether it is written to be (batch, width), or shifts, scales and gates are made of it along axis 1.

    Args:
        source: the text of a class or a function.
        name: of an argument, as c in self.adaLN_modulation(c).
    """
    given = rf"\(\s*(?:[\w.]+\(\s*)?{re.escape(name)}\s*\)"
    split = rf"{given}\)?\.chunk\(\s*\d+\s*,\s*(?:dim\s*=\s*)?1\s*\)"
    steers = re.search(rf"\b\w*(?i:{_MODULATIONS})\w*{given}|{split}", source) is not None
    is_written = documented_letters(source, name) == "bd" and documented_shape(source, name)[0].lower() != "n"
    return steers or is_written  # n may count tokens


def is_sequence(value: Any) -> bool:
    """Whether it is a tensor of floats with three axes or more."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2
