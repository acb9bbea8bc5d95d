"""Functions that cut tokens into parts: these give what all tokens at once give, and their filling has no weight."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Failed, Invocation
from regard.check.target.told_numbers import numbers_told

__all__ = ["chunk_findings", "part_size_findings"]

PART = re.compile(r"(?:local_)?(?:block|chunk|window|segment|bucket|tile)(?:_?(?:size|len|length|width))?")
"""Names of how many tokens a part has."""
_CHUNK = re.compile(r"(?:q|query|queries|k|key|keys|kv)_(?:chunk|block|tile)(?:_?(?:size|len|length))?")
"""The same of queries or keys that are computed in turn."""
_AT_ONCE = re.compile(r"\bsame (?:as|result)|\bsaves? memory|\bmemory[- ]efficient|\bwithout chunks", re.I)
"""What says that parts are for memory alone."""
MANY = 64
"""Tokens of a part that holds all of a call."""
TOLERANCE = 1e-6
_WHOLE_PARTS = re.compile(r"\b(?:multiple|divisible|divides?|evenly)\b", re.I)
"""What says of the number of tokens that no part is shorter."""


def part_size_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Values that are all 1 give an output of 1 for parts of any size, where they do for the size of the call.

    Args:
        invocation: the call.
        evidence: its attention.
    """
    values = next((each for each in invocation.streams if each.role == "v"), None)
    names = [name for name, value in invocation.arguments.items() if PART.fullmatch(name) and type(value) is int]
    if values is None or len(values.token_axes) != 1 or len(names) != 1:
        return
    (name,), given = names, invocation.arguments[values.argument]
    tokens, ones = given.shape[values.token_axes[0]], torch.ones_like(given)
    size = next((each for each in range(3, tokens) if tokens % each), 2 if tokens % 2 else 0)
    whole = _output(invocation, {values.argument: ones})
    parted = _output(invocation, {values.argument: ones, name: size}) if size else None
    if whole is None or parted is None or whole.shape != parted.shape or not _are_ones(whole) or _are_ones(parted):
        return
    worst = float(parted.min())
    if not TOLERANCE < worst < 1 or _WHOLE_PARTS.search(documentation_of(invocation.target)):
        return  # what is left over is not computed at all, or never there
    message = (
        f"with {name}={size} of {tokens} tokens the weights of a query sum to {worst:.4g} over its keys, not to 1: "
        "the last part is shorter, and what fills it has a weight"
    )
    yield Finding("violation", "weights-sum-to-one", "weights", message, evidence.base.instance.sums_location)


def chunk_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """Queries or keys in chunks, to save memory, give other outputs than all at once.

    Args:
        invocation: the call.
        evidence: its attention.
    """
    try:
        parameters = inspect.signature(getattr(invocation.target, "forward", invocation.target)).parameters
    except (ValueError, TypeError):
        return
    causal = dict.fromkeys(invocation.causal_flags, True)
    is_exact = _AT_ONCE.search(documentation_of(invocation.target)) is not None
    for name, number in numbers_told(invocation):
        if name not in parameters or not (_CHUNK.fullmatch(name) or (is_exact and PART.fullmatch(name))):
            continue
        whole, parted = (_output(invocation, {**causal, name: size}) for size in (max(number, MANY), 2))
        if whole is None or parted is None or whole.shape != parted.shape:
            continue
        gap = float((whole - parted).abs().max())
        if gap > TOLERANCE * float(whole.abs().max()):
            message = f"with {name}=2 the output differs by up to {gap:.3g} from that of all tokens at once"
            yield Finding("violation", "chunks-joined", "mask", message, evidence.base.instance.scores_location)
            return


def _output(invocation: Invocation, changed: dict[str, object]) -> Tensor | None:
    """The first output of a call with other arguments; None where it does not run or is not finite."""
    try:
        outputs = invocation.outputs(invocation.run({**invocation.arguments, **changed}))
    except Failed:
        return None
    return outputs[0] if outputs and bool(outputs[0].isfinite().all()) else None


def _are_ones(output: Tensor) -> bool:
    return bool(((output - 1).abs() <= TOLERANCE).all())
