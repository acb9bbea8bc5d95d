"""Tokens that are drawn at random at each call, as it says: an output that is random is meant so."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.check.properties.code import code_of
from regard.check.properties.documentation import name_and_documentation
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["drawn_sample_design"]

CHOOSING = re.compile(r"(?:randint|randperm|multinomial)(?:_like)?")
"""Functions that draw places, and no numbers to compute with."""
SAYS_SAMPLES = re.compile(
    r"(?:\b|_)(?:sub)?sampl(?:e[sd]?|ing)(?:\b|_)"
    r"|\brandom(?:ly)?\s+(?:select|pick|choos|chos|draw|subset|key|quer|token|block|attention)",
    re.I,
)
PLACES = re.compile(
    r"^[^#\n]*(?:\b|_)(?:sub)?sampl(?:e[sd]?|ing)\w*\s*=[^=\n]*\b(?:randint|randperm|multinomial)\b", re.M | re.I
)
"""A line that draws places and names them samples."""
COMMENTS = re.compile(r"(?<!['\"])#+(.*)$", re.M)


def drawn_sample_design(invocation: Invocation) -> str | None:
    """How a random output is meant, in words; None where more than places is drawn, or nothing says that it samples.

    The documentation, a comment or the name of what is drawn may say so.

    Args:
        invocation: a call whose output is random, and not by dropout.
    """
    drawn = _DrawnFunctions()
    try:
        with drawn:
            invocation.run()
    except (Failed, RuntimeError):
        return None
    if not drawn.names or not all(map(CHOOSING.fullmatch, drawn.names)):
        return None
    code = code_of(invocation.target)
    said = [name_and_documentation(invocation.target), *COMMENTS.findall(code)]
    if not any(map(SAYS_SAMPLES.search, said)) and not PLACES.search(code):
        return None
    functions = " and ".join(sorted(drawn.names))
    return f"which tokens are looked at is drawn at random at each call ({functions}), as it says: the output is random"


class _DrawnFunctions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, the names of the functions that draw random numbers are kept."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
