"""What a loss of classes is computed of: logits, whose logarithm of the softmax is taken once."""

from __future__ import annotations

from collections.abc import Iterator

from regard.check.properties.finding import Finding
from regard.check.properties.modules.losses import LOSSES, loss_runs
from regard.check.roles.instances import SOFTMAXES
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["scored_logit_findings"]

MATRICES = frozenset({"mm", "addmm"})
SUM_TOLERANCE = 1e-6


def scored_logit_findings(invocation: Invocation) -> Iterator[Finding]:
    """A loss whose log-softmax is taken of probabilities, or that takes probabilities or logits for their logarithms.

    Args:
        invocation: a call without labels.
    """
    for run in loss_runs(invocation):
        if not run.error and (found := _mistaken(run)) is not None:
            operation, message = found
            yield Finding("violation", "loss-of-logits", "output", message, operation.location)
            return


def _mistaken(run: Trace) -> tuple[Operation, str] | None:
    """The operation of a loss that is given something else than what it takes, and that in words."""
    originals = run.originals()
    made = {each.outputs[0].storage: each for each in run if each.outputs and not each.is_view}
    for loss in (each for each in run if each.name in LOSSES):
        taken = originals.get(loss.inputs[0].storage, loss.inputs[0].storage)
        source = made.get(taken)
        if source is None:
            continue
        if source.name == "_log_softmax":
            before = made.get(originals.get(source.inputs[0].storage, source.inputs[0].storage))
            if before is not None and _are_probabilities(before, source):
                message = (
                    "the loss takes the log-softmax of what a softmax made: probabilities lie between 0 and 1, so "
                )
                return source, f"{message}that the loss hardly falls; it is to be given the logits"
        elif source.name in SOFTMAXES and _are_probabilities(source, loss):
            return loss, "the loss is given probabilities, and not their logarithms: it is no cross-entropy"
        elif source.name in MATRICES:
            return loss, "the loss is given logits, and not the logarithms of probabilities: it has no lower bound"
    return None


def _are_probabilities(softmax: Operation, taking: Operation) -> bool:
    """Whether an operation takes all that a softmax over its last axis made of each row."""
    data = taking.inputs[0].data
    is_of_rows = softmax.name in SOFTMAXES and data.shape[-1] == softmax.outputs[0].shape[-1]
    sums = data.sum(-1)
    return is_of_rows and bool((data >= 0).all()) and bool(((sums - 1).abs() <= SUM_TOLERANCE).all())
