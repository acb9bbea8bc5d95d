"""Losses of a causal model whose text stands behind another sequence: its logits stand as far behind as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.properties.modules.losses import (
    FIRST_LABEL,
    LOSSES,
    argument_of_labels,
    distances_of,
    loss_methods,
    run_with,
    several_labels,
)
from regard.check.properties.other_methods import run_of_method
from regard.check.roles.influence import differs
from regard.check.target import Invocation
from regard.check.trace.operation import Operation, Trace

__all__ = ["prefixed_loss_findings"]


def prefixed_loss_findings(invocation: Invocation) -> Iterator[Finding]:
    """A loss of the logits of another place than the one before the label, where some other sequence stands before.

    As of the words of an answer behind the patches of a picture: the logits of the patches tell of no word.

    Args:
        invocation: a call of a module that takes ids and other sequences.
    """
    streams, target = invocation.streams, invocation.target
    ids = [each for each in streams if not invocation.arguments[each.argument].is_floating_point()]
    if not isinstance(target, nn.Module) or len(ids) != 1 or len(streams) < 2:
        return
    (told,) = ids
    given = invocation.arguments[told.argument]
    if (told.batch_axis, told.token_axes) != (0, (1,)) or given.ndim != 2 or given.shape[1] < 3:
        return
    samples, count = given.shape
    labels = several_labels(samples, count)
    changed = labels.clone()
    at = count // 2
    changed[:, at] = (labels[:, at] - FIRST_LABEL + 1 + count - at) % (count + 1) + FIRST_LABEL
    for one, other, right in _runs(invocation, told.argument, labels, changed):
        scored, again = _scored(one, samples, count), _scored(other, samples, count)
        if scored is None or again is None or scored[1].shape != again[1].shape:
            continue
        loss, logits = scored
        moved = differs(logits, again[1]).flatten(2).any(-1).any(0)
        places = torch.arange(len(moved))
        before = int(moved.to(torch.uint8).argmax()) - at
        if before < 1 or not torch.equal(moved, places >= before + at):
            continue  # it sees later tokens, or nothing stands before
        distances = {each + before for each in distances_of(loss, logits, labels)}
        if len(distances) == 1 and not distances & right:
            (distance,) = distances
            message = (
                f"{before} places stand before {told.argument}, and the loss compares the logits of a place with the "
                f"label that stands {distance} behind it: the next one's is wanted"
            )
            yield Finding("violation", "labels-of-the-next", "output", message, loss.location)
            return


def _runs(
    invocation: Invocation, name: str, labels: Tensor, changed: Tensor
) -> Iterator[tuple[Trace, Trace, frozenset[int]]]:
    """Two runs in which a loss is computed, with some ids that are the labels as well and with others.

    And how far behind its logits a label may stand: labels that are handed over may be those of the next tokens.
    """
    if (told := argument_of_labels(invocation)) is not None:
        of_both = (replace(invocation, arguments={**invocation.arguments, name: each}) for each in (labels, changed))
        one, other = (run_with(call, told, each) for call, each in zip(of_both, (labels, changed), strict=True))
        yield one, other, frozenset({0, 1})
    for method in loss_methods(invocation):
        one, other = (run_of_method(invocation, method, name, each) for each in (labels, changed))
        yield one, other, frozenset({1})


def _scored(run: Trace, samples: int, count: int) -> tuple[Operation, Tensor] | None:
    """The only loss, and the last tensor before it that has more rows for a sample than there are labels."""
    losses = [] if run.error else [each for each in run if each.name in LOSSES]
    if len(losses) != 1:
        return None
    (loss,) = losses
    for operation in reversed(run.operations[: loss.index]):
        for each in operation.outputs:
            is_wide = each.data.ndim == 3 and each.shape[-1] == loss.inputs[0].shape[-1]
            if is_wide and each.shape[0] == samples and each.shape[1] > count:
                return loss, each.data
    return None
