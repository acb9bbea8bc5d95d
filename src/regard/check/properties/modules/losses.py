"""Losses that a causal model computes itself: the logits at each token are compared with the token that comes next."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from regard.check.properties.documentation import documentation_of
from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of, run_of_method
from regard.check.roles.influence import differs, record_invocation
from regard.check.target import Invocation, Stream
from regard.check.target.names import call_meaning
from regard.check.target.token_ids import side_of
from regard.check.trace.operation import Operation, Trace

__all__ = [
    "FIRST_LABEL",
    "LOSSES",
    "argument_of_labels",
    "distances_of",
    "known_label_findings",
    "loss_findings",
    "loss_methods",
    "loss_runs",
    "run_with",
    "several_labels",
    "skipped_label_findings",
]

LOSSES = frozenset({"nll_loss_forward", "nll_loss_nd", "nll_loss"})
_ARE_IDS = re.compile(
    r"\b(?:labels|targets)\b[^.]{0,60}\binput[_ ]?ids\b|\bshift\w* (?:inside|internally|is done in)", re.I
)
"""In a documentation: the labels are the ids themselves, and the model shifts them."""
_LOSS_METHOD = re.compile(
    r"_?(?:compute_|get_|calc(?:ulate)?_|train(?:ing)?_|lm_|nll_|ce_)?loss(?:_fn|_function)?|training_step"
)
"""Names of methods that compute a loss."""
FIRST_LABEL = 1
"""Zero may be padding, whose loss is not counted."""


def loss_findings(invocation: Invocation) -> Iterator[Finding]:
    """A loss of the logits at a token with the label of an earlier one, or with those of several distances.

    Labels may be the ids themselves, which the model then shifts by one, or those of the next tokens, which it does not
    shift: both are usual.

    Args:
        invocation: a call of a module that takes ids, without labels.
    """
    ids = [each for each in invocation.streams if not invocation.arguments[each.argument].is_floating_point()]
    if not isinstance(invocation.target, nn.Module) or len(ids) != 1 or len(invocation.streams) != 1:
        return
    tokens = invocation.arguments[ids[0].argument]
    name = argument_of_labels(invocation)
    if name is None or tokens.ndim != 2 or ids[0].batch_axis != 0:
        return
    samples, count = tokens.shape
    labels = several_labels(samples, count)
    scored = _scored(run_with(invocation, name, labels), labels)
    if scored is None:
        return
    loss, logits = scored
    distances = distances_of(loss, logits, labels)
    is_unshifted = distances == {0} and _ARE_IDS.search(documentation_of(invocation.target)) is not None
    if is_unshifted or len(distances) > 1 or any(each < 0 for each in distances):
        apart = [f"{abs(each)} {'before' if each < 0 else 'behind'}" if each else "at" for each in sorted(distances)]
        message = f"the loss compares the logits at a token with the label {' and '.join(apart)} it: with {name} that "
        message += "are the ids, the next token's is wanted"
        yield Finding("violation", "labels-of-the-next", "output", message, loss.location)


def known_label_findings(invocation: Invocation) -> Iterator[Finding]:
    """A loss of the logits at a token with a label that the model was given there, though it sees no later one.

    As where a decoder is fed with its labels, and these are not shifted right behind a start token; in its call, or in
    a method that computes the loss of what the call takes.

    Args:
        invocation: a call of a module that has to be given labels, or that has such a method.
    """
    if not isinstance(invocation.target, nn.Module):
        return
    for told, run in _losses(invocation):
        labels = invocation.arguments[told.argument]
        if labels.is_floating_point() or labels.ndim != 2 or told.batch_axis != 0:
            continue
        if (
            found := _of_known_labels(told.argument, labels.shape, invocation.paddings[told.argument], run)
        ) is not None:
            yield found
            return


def _losses(invocation: Invocation) -> Iterator[tuple[Stream, Callable[[Tensor], Trace]]]:
    """Each sequence that may hold the labels of a loss, with the run in which others are handed over."""
    for told in [each for each in invocation.streams if call_meaning(each.argument) == "targets"][:1]:
        yield told, partial(run_with, invocation, told.argument)
    sides = [each for each in invocation.streams if len(invocation.streams) == 1 or side_of(each.argument) < 0]
    if not any(side_of(each.argument) for each in invocation.streams):  # as of audio and the text that it says
        sides = sides or [each for each in invocation.streams if not _is_of_numbers(invocation, each)]
    for method in loss_methods(invocation) if len(sides) == 1 else ():
        yield sides[0], partial(run_of_method, invocation, method, sides[0].argument)


def _is_of_numbers(invocation: Invocation, stream: Stream) -> bool:
    return bool(invocation.arguments[stream.argument].is_floating_point())


def several_labels(samples: int, count: int) -> Tensor:
    """(samples, count): the labels of a sample differ, and those of two samples at one place."""
    return (torch.arange(samples)[:, None] + torch.arange(count)[None]) % (count + 1) + FIRST_LABEL


def run_with(invocation: Invocation, name: str, labels: Tensor) -> Trace:
    """The run of a call with other labels."""
    return record_invocation(invocation, {**invocation.arguments, name: labels}, lines=True)


def loss_runs(invocation: Invocation) -> Iterator[Trace]:
    """Runs in which a model of ids computes a loss, of its ids as labels: its call's, or that of a method.

    Args:
        invocation: a call without labels.
    """
    ids = [each.argument for each in invocation.streams if not invocation.arguments[each.argument].is_floating_point()]
    if not isinstance(invocation.target, nn.Module) or len(ids) != 1:
        return
    labels = invocation.arguments[ids[0]]
    if (name := argument_of_labels(invocation)) is not None:
        yield run_with(invocation, name, labels)
    for method, more in _methods_of_losses(invocation):
        if len(more) <= 1:
            yield run_of_method(invocation, method, (more or ids)[0], labels)


def _methods_of_losses(invocation: Invocation) -> Iterator[tuple[str, list[str]]]:
    """The methods of a module's class that compute a loss of what its call takes, and what they need besides."""
    kind, given = type(invocation.target), set(invocation.arguments)
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        needs = needs_of(method)
        if _LOSS_METHOD.fullmatch(name) and given <= {*needs} and not method.__module__.startswith("torch."):
            yield name, [each for each in needs if each not in given]


def loss_methods(invocation: Invocation) -> list[str]:
    """The methods of a module's class that compute a loss of nothing but what its call takes."""
    return [name for name, more in _methods_of_losses(invocation) if not more]


def _of_known_labels(name: str, shape: torch.Size, padding: int, run: Callable[[Tensor], Trace]) -> Finding | None:
    """What is wrong with a loss by which label it compares the logits with, and which of them these are made of.

    Args:
        name: of the argument that holds the labels.
        shape: (samples, tokens).
        padding: the id of padding among them.
        run: with other labels.
    """
    samples, count = shape
    free = [each for each in range(count + 2) if each != padding][: count + 1]
    labels = torch.tensor(free)[(torch.arange(samples)[:, None] + torch.arange(count)[None]) % len(free)]
    scored = _scored(run(labels), labels)
    if scored is None:
        return None
    loss, logits = scored
    distances = distances_of(loss, logits, labels)
    if len(distances) != 1 or count < 3:
        return None
    (distance,) = distances
    seen = _labels_seen(run, labels, logits, free)
    rows = range(max(0, -distance), min(count, count - distance) - 1)
    sees_later = distance > 0  # a model that fills in hidden tokens compares with those at their own places
    if seen is None or not all(
        bool(seen[at, at + distance]) and (sees_later or not bool(seen[at, at + distance + 1 :].any())) for at in rows
    ):
        return None
    at = "at" if not distance else f"{abs(distance)} {'before' if distance < 0 else 'behind'}"
    message = f"the loss compares the logits at a token with the label {at} it, which the model was given there: "
    is_later = any(bool(seen[at, at + distance + 1 :].any()) for at in rows)
    message += "no mask hides later tokens" if is_later else f"{name} is not shifted before it is read"
    message += ", and the loss falls by copying"
    return Finding("violation", "labels-of-the-next", "output", message, loss.location)


def skipped_label_findings(invocation: Invocation) -> Iterator[Finding]:
    """A loss of the logits at a token with a label beyond the next of those that the model was given there.

    As where what a decoder reads is made of its labels, shifted, and its loss shifts these once more.

    Args:
        invocation: a call of a module that may be given labels in place of ids.
    """
    ids = [each for each in invocation.streams if not invocation.arguments[each.argument].is_floating_point()]
    name = argument_of_labels(invocation) if isinstance(invocation.target, nn.Module) else None
    if name is None or len(ids) != 1 or ids[0].batch_axis != 0 or invocation.arguments[ids[0].argument].ndim != 2:
        return
    asked = inspect.signature(invocation.target.forward).parameters.get(ids[0].argument)
    if asked is None or asked.default is not None:
        return
    samples, count = invocation.arguments[ids[0].argument].shape
    labels = several_labels(samples, count)
    alone = replace(invocation, arguments={**invocation.arguments, ids[0].argument: None})
    scored = _scored(run_with(alone, name, labels), labels)
    if scored is None or len(distances := distances_of(*scored, labels)) != 1:
        return
    loss, logits = scored
    seen = _labels_seen(partial(run_with, alone, name), labels, logits, range(FIRST_LABEL, count + 1 + FIRST_LABEL))
    last = [] if seen is None else [int(row.nonzero()[-1]) - at for at, row in enumerate(seen) if bool(row.any())]
    (distance,) = distances
    if len(last) > 1 and len({*last}) == 1 and distance > last[0] + 1:
        message = (
            f"the loss compares the logits at token 1 with label {1 + distance}, where the model was given the labels "
            f"up to {1 + last[0]}: {name} are shifted twice, and the next one is never asked for"
        )
        yield Finding("violation", "labels-of-the-next", "output", message, loss.location)


def _labels_seen(run: Callable[[Tensor], Trace], labels: Tensor, logits: Tensor, ids: Sequence[int]) -> Tensor | None:
    """(tokens, tokens): whether the logits at the first change with the label at the second; None where a run fails."""
    found = []
    for at in range(labels.shape[1]):
        changed = labels.clone()
        others = [each for each in ids if each not in labels[:, at].tolist()]
        if not others:
            return None
        changed[:, at] = others[0]
        scored = _scored(run(changed), labels)
        if scored is None:
            return None
        found.append(differs(logits, scored[1]).flatten(2).any(-1).any(0))
    return torch.stack(found, 1)


def argument_of_labels(invocation: Invocation) -> str | None:
    """The argument that may hold labels, and was not given."""
    try:
        names = inspect.signature(invocation.target.forward).parameters
    except (ValueError, TypeError):
        return None
    found = [each for each in names if call_meaning(each) == "targets" and invocation.arguments.get(each) is None]
    return found[0] if len(found) == 1 and not re.search("mask|pos", found[0]) else None


def _scored(run: Trace, labels: Tensor) -> tuple[Operation, Tensor] | None:
    """A loss, and the last tensor before it that has a row of each label, as wide as what the loss takes."""
    loss = None if run.error else next((each for each in run if each.name in LOSSES), None)
    if loss is None:
        return None
    samples, count = labels.shape
    width = loss.inputs[0].shape[-1]
    for tokens in (count, count - 1):  # the last label is not read where it is none of a next token
        for operation in reversed(run.operations[: loss.index]):
            for each in operation.outputs:
                if each.shape == (samples, tokens, width):
                    return loss, each.data
    return None


def distances_of(loss: Operation, logits: Tensor, labels: Tensor) -> set[int]:
    """How far the label that each row of a loss is compared with stands behind the token of its logits."""
    rows, wanted = loss.inputs[0].data, loss.inputs[1].data
    found = set[int]()
    known = logits.log_softmax(-1)
    if rows.ndim != 2 or wanted.ndim != 1:
        return found
    for row, label in zip(rows, wanted, strict=True):
        at = ((known - row).abs().amax(-1) < 1e-9).nonzero()
        if len(at) != 1 or int(label) < 0:
            continue
        sample, token = at[0].tolist()
        place = (labels[sample] == label).nonzero()
        if len(place) != 1:
            return {*found, -labels.shape[1]} if len(place) == 0 else found
        found.add(int(place[0]) - token)
    return found
