"""Probabilities of classes: those of a token sum to one over its classes, where they are returned or scored."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.properties.modules.losses import loss_runs
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["class_probability_findings"]

MATRICES = frozenset({"mm", "addmm"})
AXES = 3
"""Of samples, tokens and classes."""


def class_probability_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Logits, as a matrix has made them for each token, whose log-softmax runs over something else than the classes.

    Logits that were transposed, as a loss of classes in the second axis asks for, are no longer what the matrix made.
    Weights of tokens, as of pooling, are no logarithms.

    Args:
        invocation: the call.
        base: its run.
    """
    returned = {each.storage for each in base.outputs}
    wrong = [each for each in _mistaken(base) if each[0].outputs[0].storage in returned]
    wrong = wrong or [each for run in loss_runs(invocation) if not run.error for each in _mistaken(run)]
    if not wrong:
        return
    (operation, classes), *_ = wrong
    logits = operation.inputs[0]
    if classes == logits.shape[-1]:
        message = (
            f"the log-softmax of what a matrix makes of each token runs over axis 1 of {logits.shape}, and not over "
            f"its {classes} classes: what comes out for a token are no log-probabilities"
        )
    else:
        message = (
            f"what a matrix makes of each token is read as {logits.shape}, with {classes} classes in axis 1, by a "
            "reshape: it moves no axis, and numbers of several tokens and classes stand among each other"
        )
    yield Finding("violation", "probabilities-of-classes", "output", message, operation.location)


def _mistaken(run: Trace) -> Iterator[tuple[Operation, int]]:
    """Log-softmaxes over tokens, or a reshaped axis, of what a matrix made in this memory; and how many classes."""
    made = {each.outputs[0].storage: each.outputs[0].shape[-1] for each in run if each.name in MATRICES}
    for operation in run:
        if operation.name != "_log_softmax":
            continue
        logits, axis = operation.inputs[0], operation.args[1]
        classes, is_of_tokens = made.get(logits.storage, 0), len(logits.shape) == AXES and axis % AXES == 1
        if is_of_tokens and classes in (logits.shape[-1], logits.shape[1]) and logits.data.is_contiguous():
            yield operation, classes
