"""Shifts, scales and gates that one projection makes of a condition: each is used at its own place.

Peebles and Xie 2022, "Scalable Diffusion Models with Transformers" (arXiv:2212.09748), section 3.2: adaLN-Zero has six
of them, three for the attention and three for the network.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["modulation_findings"]

SPLITS = frozenset({"split", "split_with_sizes", "unbind", "chunk"})
BROADCASTS = frozenset({"add", "sub", "mul", "div", "addcmul", "lerp"})


def modulation_findings(trace: Trace) -> Iterator[Finding]:
    """Parts of a projection of which one meets the tokens at two places and another has no effect at all.

    A part alone without effect may be meant, as in the last block of a stream that nothing reads afterwards.

    Args:
        trace: a run.
    """
    for operation in trace:
        parts = operation.outputs
        is_learned = bool(operation.inputs) and operation.inputs[0].learned
        if operation.name not in SPLITS or not is_learned or len({each.shape for each in parts}) != 1:
            continue
        uses = [_uses(trace, operation, each) for each in parts]
        lost = [number for number, (is_read, _) in enumerate(uses) if not is_read]
        again = [number for number, (_, places) in enumerate(uses) if places > 1]
        if lost and again:
            message = (
                f"of the {len(parts)} parts of what is made of the condition (counted from 0), {_listed(again)} met "
                f"the tokens at {uses[again[0]][1]} places, and {_listed(lost)} had no effect"
            )
            yield Finding("violation", "modulations-used", "block", message, operation.location)
            return


def _uses(trace: Trace, split: Operation, part: TensorRecord) -> tuple[bool, int]:
    """Whether anything reads a part, and at how many places it meets a larger tensor."""
    numbers, derived = _numbers(part), {part.storage: False}
    """By memory, whether all that lies there is made of the part."""
    is_read, places = any(_is_of(each, part, numbers, False) for each in trace.outputs), 0
    for operation in trace.operations[split.index + 1 :]:
        if operation.is_view and not operation.written:
            continue
        taken = [
            each
            for each in operation.inputs
            if each.storage in derived and _is_of(each, part, numbers, derived[each.storage])
        ]
        if not taken:
            continue
        is_read = True
        for made in operation.outputs:
            if made.data.numel() > part.data.numel():
                places += operation.name.rstrip("_") in BROADCASTS
            elif all(each.storage in derived or each.data.numel() == 1 for each in operation.inputs):
                derived[made.storage] = made.storage != part.storage
    return is_read, places


def _is_of(record: TensorRecord, part: TensorRecord, numbers: Tensor, is_whole: bool) -> bool:
    """Whether a tensor holds numbers of a part."""
    return is_whole or (record.storage == part.storage and bool(torch.isin(_numbers(record), numbers).any()))


def _numbers(record: TensorRecord) -> Tensor:
    """Where the numbers of a tensor lie in its memory."""
    places = torch.tensor(record.offset)
    for size, stride in zip(record.shape, record.stride, strict=True):
        places = places[..., None] + torch.arange(size) * stride
    return places.flatten()


def _listed(numbers: list[int]) -> str:
    return f"part{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
