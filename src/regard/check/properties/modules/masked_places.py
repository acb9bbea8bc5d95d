"""Methods that put a mask token into a text to ask what stands there: the answer is read where it was put."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.properties.other_methods import needs_of, run_of_method
from regard.check.target import Invocation
from regard.check.target.names import call_meaning
from regard.check.trace.operation import Operation, Trace

__all__ = ["masked_place_findings"]

_MASK_ID = re.compile(r"mask_?(?:token|idx|id|index|item)(?:_?(?:id|idx|index))?", re.I)
"""Names of the id of a mask token."""
_LENGTHS = re.compile(r"(?:.*_)?(?:lens?|lengths?)", re.I)
READS = frozenset({"gather", "index", "index_select", "select"})
"""Operations that take one place of each sample."""
FEWEST_TOKENS = 4


def masked_place_findings(invocation: Invocation) -> Iterator[Finding]:
    """A state that is read at another place than where a mask token was put, by a method of ids and their lengths.

    As by a model of what is bought next (Sun et al. 2019, "BERT4Rec", section 3.6): the mask is appended to the items
    of a user, and the state at the mask tells the next one.

    Args:
        invocation: a call of a module of ids.
    """
    target = invocation.target
    ids = [each for each in invocation.streams if not invocation.arguments[each.argument].is_floating_point()]
    if not isinstance(target, nn.Module) or len(ids) != 1 or len(invocation.streams) != 1 or ids[0].batch_axis != 0:
        return
    told = vars(target).items()
    marks = {value for name, value in told if type(value) is int and _MASK_ID.fullmatch(name)}
    given = invocation.arguments[ids[0].argument]
    if len(marks) != 1 or given.ndim != 2 or given.shape[1] < FEWEST_TOKENS or bool((given == min(marks)).any()):
        return
    (mark,), padding = marks, invocation.paddings[ids[0].argument]
    lengths = given.shape[1] - 1 - torch.arange(len(given)) % 2
    texts = torch.where(torch.arange(given.shape[1]) < lengths[:, None], given, padding)
    for name, method in inspect.getmembers(type(target), inspect.isfunction):
        needs = needs_of(method)
        if method.__module__.startswith("torch.") or len(needs) != 2:
            continue
        of_ids, of_lengths = needs
        is_asked = of_ids == ids[0].argument or call_meaning(of_ids) == "ids"
        if not is_asked or not _LENGTHS.fullmatch(of_lengths):
            continue
        run = run_of_method(replace(invocation, arguments={of_ids: texts}), name, of_lengths, lengths)
        put, read = _put(run, mark, len(texts)), _read(run, len(texts))
        if put is None or read is None or read[0].shape[1] != put.shape[1]:
            continue
        at, places = put.int().argmax(1), read[0].int().argmax(1)
        if bool((at != places).all()):
            message = (
                f"{name}() puts the mask token {mark} at place {int(at[0])}, and reads the state at place "
                f"{int(places[0])}: what it is to tell stands at the mask"
            )
            yield Finding("violation", "read-at-the-mask", "output", message, read[1].location)
            return


def _put(run: Trace, mark: int, samples: int) -> Tensor | None:
    """(samples, tokens): where the mask token stands in what is looked up, once in each sample; None of others."""
    for each in run:
        if each.name == "embedding" and each.inputs[1].data.ndim == 2 and len(each.inputs[1].data) == samples:
            put = each.inputs[1].data == mark
            return put if bool((put.sum(1) == 1).all()) else None
    return None


def _read(run: Trace, samples: int) -> tuple[Tensor, Operation] | None:
    """(samples, tokens): the place of which the last state of each sample is taken, and where that is done."""
    for operation in reversed(run.operations):
        if operation.name not in READS or operation.inputs[0].data.ndim != 3 or not operation.outputs:
            continue
        states, taken = operation.inputs[0].data, operation.outputs[0].data
        if len(states) != samples or taken.numel() != samples * states.shape[2]:
            continue
        same = (states == taken.reshape(samples, 1, -1)).all(-1)
        return (same, operation) if bool((same.sum(1) == 1).all()) else None
    return None
