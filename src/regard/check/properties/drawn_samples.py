"""Tokens, or slots, that are drawn at random at each call: an output that is random is meant so."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.check.properties.analysis import Analysis
from regard.check.properties.code import code_of
from regard.check.properties.documentation import name_and_documentation
from regard.check.target import Invocation
from regard.check.target.errors import Failed

__all__ = ["drawn_sample_design", "drawn_slot_design"]

CHOOSING = re.compile(r"(?:randint|randperm|multinomial)(?:_like)?")
"""Functions that draw places, and no numbers to compute with."""
NUMBERS = re.compile(r"(?:randn|normal)(?:_like|_)?")
"""Functions that draw numbers of a normal distribution."""
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


def drawn_slot_design(analysis: Analysis) -> str | None:
    """How a random output of slot attention is meant, in words; None where its slots are not all that is drawn.

    Locatello et al. 2020, "Object-Centric Learning with Slot Attention", algorithm 1: slots begin as samples of a
    normal distribution, in evaluation as well. Noise of tokens, scores or weights has as many numbers as there are
    tokens; slots have not.

    Args:
        analysis: of a call whose output is random, and not by dropout.
    """
    call = analysis.invocation
    if len(call.streams) != 1 or len(call.streams[0].token_axes) != 1:
        return None
    if not any((each.kind, each.property) == ("design", "slot-attention") for each in analysis.findings):
        return None
    (stream,) = call.streams
    given, (axis,) = call.arguments[stream.argument], stream.token_axes
    several = []
    for count in (given.shape[axis], given.shape[axis] - 1):
        drawn = _DrawnFunctions()
        try:
            with drawn:
                call.run({**call.arguments, stream.argument: given.narrow(axis, 0, count)})
        except (Failed, RuntimeError):
            return None
        several.append(drawn)
    whole, fewer = several
    if not whole.names or not all(map(NUMBERS.fullmatch, whole.names)) or whole.shapes != fewer.shapes:
        return None
    return "slots are drawn at random at each call, as where slot attention begins: the output is random"


class _DrawnFunctions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, the names of the functions that draw random numbers are kept, and the sizes of what they return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.add(func.overloadpacket.__name__)
            self.shapes += [tuple(each.shape) for each in tree_leaves(result) if isinstance(each, Tensor)]
        return result
