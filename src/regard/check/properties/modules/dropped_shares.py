"""Dropout of weights that is written by hand: on average, values are given as much in training as in eval()."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import nn

from regard.check.location import CodeLocation
from regard.check.properties.code import code_of
from regard.check.properties.finding import Finding
from regard.check.properties.modules.dropout_modes import drop_some
from regard.check.roles.contractions import MATRICES
from regard.check.roles.tags import SOFTMAXES
from regard.check.target import Invocation
from regard.check.target.preparation import copied, in_mode
from regard.check.trace.operation import COPIES, Operation, Trace
from regard.check.trace.recorder import record

__all__ = ["dropped_share_findings"]

SEEDS = 16
ERRORS = 8.0
"""Standard errors of the mean over all seeds that what is told lies beyond: chance alone reaches that in no check."""
SMALLEST = 0.04
"""The smallest share that counts."""
SAME = 1e-4
_FOLLOWED = COPIES | {"mul", "div", "masked_fill", "where", "native_dropout", "_to_copy"}
"""Operations that return a number for each weight, made of it alone and of what is the same for all inputs."""
_MEANT = re.compile(
    r"(?:without|no|not|never|un)[-_ ]*(?:\w+ ){0,2}(?:re-?)?scal(?:ed|ing|e)\b|prun|drop[-_ ]?(?:token|patch)", re.I
)
"""In a code: what is left is meant to be less."""


def dropped_share_findings(invocation: Invocation) -> Iterator[Finding]:
    """Weights of which chance leaves values another sum in training, on average, than they are given in eval().

    Srivastava et al. 2014, "Dropout", section 10: numbers are kept with a probability of 1 - p, and either what is
    kept is divided by 1 - p in training or all are multiplied by it in use. As where a mask keeps what should be
    dropped, or where nothing is divided. Weights that are normalized once more sum to one as before.

    Args:
        invocation: a call of a module that is in eval().
    """
    target = invocation.target
    if not isinstance(target, nn.Module) or invocation.arrays:
        return
    base, first = _traced(invocation, 0, training=False), _traced(invocation, 1, training=True)
    if base is None or first is None:
        return
    before, drawn = ([*map(_sums, _softmaxes(each), [each] * len(_softmaxes(each)))] for each in (base, first))
    if not _is_changed(before, drawn) or _MEANT.search(code_of(target)):
        return
    lines, ratios = [_first_change(each, first) for each in _softmaxes(first)], list[list[float]]()
    for seed in range(1, SEEDS + 1):
        trace = first if seed == 1 else _traced(invocation, seed, training=True)
        found = [_sums(each, trace) for each in _softmaxes(trace)] if trace is not None else []
        if len(found) != len(before):
            return  # chance leaves out a layer as a whole
        ratios.append(
            [now / then if now is not None and then else float("nan") for now, then in zip(found, before, strict=True)]
        )
    for share, line in zip(torch.tensor(ratios, dtype=torch.float64).T, lines, strict=True):
        mean, error = float(share.mean()), float(share.std()) / SEEDS**0.5
        if error > SAME and abs(mean - 1) > max(SMALLEST, ERRORS * error):
            message = (
                f"in training, the weights that values are given sum on average to {mean:.2g} of what they sum to in "
                "eval(): those that dropout keeps are to be divided by the share that it keeps, 1 - p"
            )
            yield Finding("violation", "dropped-share", "weights", message, line)
            return


def _traced(invocation: Invocation, seed: int, *, training: bool) -> Trace | None:
    """The run of a copy in training or in eval(); None where it fails."""
    live = in_mode(copied(invocation.target), training=training)
    drop_some(live)
    trace = record(
        lambda watch: invocation.run(target=live, watch=watch, seed=seed), outputs=invocation.outputs, lines=seed == 1
    )
    return None if trace.error else trace


def _softmaxes(trace: Trace) -> list[Operation]:
    return [each for each in trace if each.name in SOFTMAXES and each.name != "_log_softmax"]


def _is_changed(before: list[float | None], drawn: list[float | None]) -> bool:
    """Whether any weights that meet values sum to something else, where as many softmaxes are computed."""
    return len(before) == len(drawn) and any(
        one is not None and other is not None and abs(one - other) > SAME * abs(one)
        for one, other in zip(before, drawn, strict=True)
    )


def _sums(softmax: Operation, trace: Trace) -> float | None:
    """What the weights of a softmax sum to as a product takes them; None where that cannot be followed."""
    *_, last = _steps(softmax, trace)
    return last[1] if last[0].name in MATRICES else None


def _first_change(softmax: Operation, trace: Trace) -> CodeLocation | None:
    """The line after which weights no longer sum to what their softmax returned."""
    (_, total), *others = _steps(softmax, trace)
    return next((each.location for each, now in others if abs(now - total) > SAME * abs(total)), softmax.location)


def _steps(softmax: Operation, trace: Trace) -> Iterator[tuple[Operation, float]]:
    """The operations from a softmax to the product that takes its weights, each with the sum of the weights there."""
    weights = softmax.outputs[0]
    known, count = {weights.storage}, weights.data.numel()
    yield softmax, float(weights.data.double().sum())
    for operation in trace.operations[softmax.index + 1 :]:
        taken = next((each for each in operation.inputs if each.storage in known), None)
        if taken is None:
            continue
        if operation.name in MATRICES:
            yield operation, float(taken.data.double().sum())
            return
        name = operation.name.rstrip("_")
        made = next((each for each in (*operation.written, *operation.outputs) if each.data.numel() == count), None)
        if made is not None and (operation.is_view or name in _FOLLOWED):
            known.add(made.storage)
            yield operation, float(made.data.double().sum())
