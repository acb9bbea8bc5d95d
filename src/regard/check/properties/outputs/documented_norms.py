"""What the heads go through once they were read, as the documentation says it: a norm of each, and a fixed factor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Evidence, Finding
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in
from regard.check.trace.operation import Operation

__all__ = ["head_factor_findings", "head_norm_findings"]

_OF_EACH_HEAD = re.compile(
    r"\bnorm\w*\s+(?:per|for each|of each|of every|in each|within each)\s+head\b"
    r"|\b(?:head-?wise|per-head)\s+(?:\w+\s+)?norm",
    re.I,
)
_OF_THE_START = re.compile(r"\b1\s*[-−]\s*(?:λ|lambda)_?init\b", re.I)
_START = re.compile(r"_?(?:λ|lambda|lam)_?init\w*", re.I)
"""The number that lambda begins with in differential attention (Ye et al. 2024, section 2.1)."""
MEANS = frozenset({"mean", "var", "var_mean", "sum", "linalg_vector_norm", "norm", "std"})
SAME = 1e-6


def head_norm_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A norm of what was read that is taken over all heads, where the documentation says that each has its own.

    Args:
        invocation: the call.
        evidence: its attention.
    """
    if not _OF_EACH_HEAD.search(" ".join(documentation_of(invocation.target).split())):
        return
    streams = invocation.streams
    if len(streams) != 1 or streams[0].batch_axis != 0 or len(streams[0].token_axes) != 1:
        return
    given = invocation.arguments[streams[0].argument]
    samples, tokens = given.shape[0], given.shape[streams[0].token_axes[0]]
    for operation in _after(evidence):
        shape = operation.inputs[0].shape if operation.inputs else ()
        if operation.name not in MEANS or len(shape) != 4 or shape[0] != samples or shape.count(tokens) != 1:
            continue
        axes = operation.args[1] if len(operation.args) > 1 and operation.args[1] is not None else range(4)
        over = {axis % 4 for axis in (axes if isinstance(axes, list | tuple | range) else [axes])}
        heads = ({1, 2} - {shape.index(tokens)}).pop()
        if shape.index(tokens) in (1, 2) and over == {heads, 3} and shape[heads] > 1:
            message = (
                f"the norm after the weighted sums runs over all {shape[heads]} heads; by its documentation each has "
                "its own"
            )
            yield Finding("violation", "norm-of-each-head", "heads", message, operation.location)
            return


def head_factor_findings(invocation: Invocation, evidence: Evidence) -> Iterator[Finding]:
    """A learned number by which what was read is multiplied, where the documentation says 1 - lambda_init.

    Args:
        invocation: the call.
        evidence: its attention.
    """
    if not _OF_THE_START.search(documentation_of(invocation.target)):
        return
    starts = [
        float(value)
        for root in modules_in(invocation.target)
        for module in root.modules()
        for name, value in vars(module).items()
        if _START.fullmatch(name) and isinstance(value, float)
    ]
    factors: list[tuple[float, bool, Operation]] = []
    for operation in _after(evidence):
        if operation.name.rstrip("_") != "mul":
            continue
        others = [each for each in operation.args if not _is_wide(each)]
        for each in others:
            value = getattr(each, "data", each)
            number = float(value)
            factors.append((number, bool(getattr(each, "learned", False)), operation))
    is_fixed = any(abs(number - (1 - start)) < SAME for number, _, _ in factors for start in starts)
    learned = [each for each in factors if each[1]]
    if len(starts) == 1 and learned and not is_fixed:
        number, _, operation = learned[0]
        message = (
            f"what was read is multiplied by {number:.4g}, which is learned, and by its documentation by 1 - "
            f"lambda_init = {1 - starts[0]:.4g}"
        )
        yield Finding("violation", "factor-as-documented", "heads", message, operation.location)


def _is_wide(value: object) -> bool:
    """Whether it is a tensor of several numbers, or nothing that multiplies."""
    data = getattr(value, "data", value)
    return data.numel() != 1 if isinstance(data, Tensor) else not isinstance(data, int | float)


def _after(evidence: Evidence) -> Sequence[Operation]:
    """What is computed of the weighted sums, up to the next matrix."""
    instance = evidence.base.instance
    last, trace = instance.sums[-1].operation.index, instance.run.trace
    made = {each.output.storage for each in instance.sums}
    found = list[Operation]()
    for operation in trace.operations[last + 1 :]:
        if not any(each.storage in made for each in operation.inputs):
            continue
        if operation.name in ("mm", "addmm", "bmm", "linear"):
            break
        found.append(operation)
        made.update(each.storage for each in operation.outputs)
    return found
