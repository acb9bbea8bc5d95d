"""Masks that a module makes for itself, or is made with, and never reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set

import torch
from torch import Tensor

from regard.check.properties.attributes import is_unread
from regard.check.properties.evidence import HIDDEN
from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in
from regard.check.target.subclasses import is_read_by_a_subclass
from regard.check.trace.operation import Operation, Trace

__all__ = ["lost_fill_findings", "thrown_away_mask", "unread_mask_findings"]


def unread_mask_findings(invocation: Invocation, several: Sequence[Evidence]) -> Iterator[Finding]:
    """A mask that nothing is done with, while no attention hides a key: made by the call, or kept by a module.

    Args:
        invocation: a call; one that may be given a mask keeps its own for those who hand it over.
        several: the evidence of its attentions.
    """
    if invocation.masks or invocation.causal_flags or not several:
        return
    if not all(bool((each.base.weight > ZERO_WEIGHT).all()) for each in several):
        return
    thrown_away = thrown_away_mask(several[0], several[0].base.instance.run.trace)
    if thrown_away is not None:
        yield thrown_away
        return
    for owner in modules_in(invocation.target):
        for path, module in owner.named_modules():
            kept = [*vars(module).items(), *module.named_buffers(recurse=False)]
            for name, value in kept:
                is_mask = "mask" in name.lower() and isinstance(value, Tensor) and _hides(value)
                is_left = is_mask and is_unread(type(module), name)
                if is_left and not is_read_by_a_subclass(type(module), name):
                    where = f"{path}.{name}" if path else name
                    message = f"{where} hides keys, but no line reads it: every query sees every key it is scored with"
                    yield Finding("violation", "mask-read", "mask", message)
                    return


def thrown_away_mask(evidence: Evidence, trace: Trace) -> Finding | None:
    """A mask of queries and keys, or masked scores, that no operation takes and no call returns; None if all are used.

    As where the result of ``masked_fill`` is not kept, which ``masked_fill_`` would have written into the scores.

    Args:
        evidence: an attention.
        trace: the run.
    """
    table = evidence.base
    sizes = (int(table.query.token.max()) + 1, int(table.key.token.max()) + 1)
    for operation, _ in _lost(trace):
        made = operation.outputs[0].data
        if tuple(made.shape[-2:]) == sizes and min(sizes) > 1 and _blocks_some(made):
            message = "a mask of queries and keys is made, and nothing is done with it: every query sees every key"
            return Finding("violation", "mask-read", "mask", message, operation.location)
    return None


def lost_fill_findings(trace: Trace) -> Iterator[Finding]:
    """Numbers that ``masked_fill`` has hidden some of in a new tensor, which nothing takes, while the old one is read.

    Args:
        trace: the run.
    """
    for operation, later in _lost(trace):
        is_fill = operation.name == "masked_fill" and operation.inputs[0].storage in later
        if is_fill and (_blocks_some(operation.outputs[0].data) or _is_statement(operation)):
            message = "what masked_fill returns is not kept: what it should have hidden is read all the same"
            yield Finding("violation", "mask-read", "mask", message, operation.location)
            return


def _is_statement(operation: Operation) -> bool:
    """Whether its line is a call alone, whose result has no name: it is not even kept to be looked at."""
    try:
        body = ast.parse(operation.location.text.strip()).body if operation.location is not None else []
    except SyntaxError:
        return False
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "masked_fill"


def _lost(trace: Trace) -> Iterator[tuple[Operation, Set[int]]]:
    """Operations whose results nothing takes, from the last to the first, and the memory that is read after each."""
    used = {each.storage for each in trace.outputs}
    for operation in reversed(trace.operations):
        if operation.is_view and not operation.is_in_place:
            continue
        is_kept = bool(operation.written) or operation.is_in_place
        if operation.outputs and not is_kept and not {each.storage for each in operation.outputs} & used:
            yield operation, used
        used |= {each.storage for each in operation.inputs}


def _blocks_some(made: Tensor) -> bool:
    """Whether it is True at some places and False at others, or a number far down at some."""
    blocked = made if made.dtype == torch.bool else made <= HIDDEN if made.is_floating_point() else None
    return blocked is not None and bool(blocked.any()) and not bool(blocked.all())


def _hides(buffer: Tensor) -> bool:
    """Whether it has queries and keys, and hides some of them: two numbers, one of them True, 1 or far down."""
    if buffer.ndim < 2 or buffer.shape[-1] < 2 or buffer.shape[-1] != buffer.shape[-2]:
        return False
    numbers = set(buffer.double().flatten().tolist())
    return len(numbers) == 2 and (numbers == {0.0, 1.0} or min(numbers) <= HIDDEN)
