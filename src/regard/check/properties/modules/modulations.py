"""Shifts, scales and gates that one projection makes of a condition: each is used at its own place.

Peebles and Xie 2022, "Scalable Diffusion Models with Transformers" (arXiv:2212.09748), section 3.2: adaLN-Zero has six
of them, three for the attention and three for the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.properties.modules.residuals import LAYER_NORMS
from regard.check.target.preparation import began_as_zeros
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["SPLITS", "is_of", "modulation_findings", "numbers_of", "scale_from_zero_findings"]

SPLITS = frozenset({"split", "split_with_sizes", "unbind", "chunk"})
MATRICES = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "convolution"})
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


def scale_from_zero_findings(target: Any, trace: Trace) -> Iterator[Finding]:
    """A norm times a scale that begins as zero, plus a shift that does: what a matrix takes is zero for all tokens.

    Both are parts of one projection of the condition. A gate that begins as zero stands behind a sublayer, and what it
    multiplies is added to the tokens; a scale in front of one is counted from 1.

    Args:
        target: a module whose parameters are known as they began.
        trace: its run.
    """
    zeros = began_as_zeros(target)
    if not zeros:
        return
    learned = {name for name, _ in target.named_parameters()}
    weights = (name.removesuffix(".weight") for name in zeros if name.endswith(".weight"))
    silent = {each for each in weights if f"{each}.bias" in zeros or f"{each}.bias" not in learned}
    made = {each.outputs[0].storage for each in trace if each.name in MATRICES and each.module in silent}
    normed, scaled = set[int](), dict[int, tuple[Operation, int]]()
    shifted = dict[int, Operation]()
    for operation in trace:
        several = [each.storage for each in operation.inputs]
        if operation.name in LAYER_NORMS:
            normed.add(operation.outputs[0].storage)
        elif operation.name == "mul" and len(several) == 2:
            part = next((each for each in several if each in made), None)
            if part is not None and any(each in normed for each in several):
                scaled[operation.outputs[0].storage] = operation, part
        elif operation.name == "add" and len(several) == 2:
            for one, other in (several, several[::-1]):
                if one in scaled and scaled[one][1] == other:
                    shifted[operation.outputs[0].storage] = scaled[one][0]
        elif operation.name in MATRICES and (
            found := next((shifted[each] for each in several if each in shifted), None)
        ):
            message = (
                "a norm is multiplied by a scale that begins as zero and shifted by what begins as zero: a layer is "
                "given zeros for all tokens, as the scale is not added to 1"
            )
            yield Finding("violation", "scale-counted-from-one", "block", message, found.location)
            return


def _uses(trace: Trace, split: Operation, part: TensorRecord) -> tuple[bool, int]:
    """Whether anything reads a part, and at how many places it meets a larger tensor."""
    numbers, derived = numbers_of(part), {part.storage: False}
    """By memory, whether all that lies there is made of the part."""
    is_read, places = any(is_of(each, part, numbers, False) for each in trace.outputs), 0
    for operation in trace.operations[split.index + 1 :]:
        if operation.is_view and not operation.written:
            continue
        taken = [
            each
            for each in operation.inputs
            if each.storage in derived and is_of(each, part, numbers, derived[each.storage])
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


def is_of(record: TensorRecord, part: TensorRecord, numbers: Tensor, is_whole: bool) -> bool:
    """Whether a tensor holds numbers of a part."""
    return is_whole or (record.storage == part.storage and bool(torch.isin(numbers_of(record), numbers).any()))


def numbers_of(record: TensorRecord) -> Tensor:
    """Where the numbers of a tensor lie in its memory."""
    places = torch.tensor(record.offset)
    for size, stride in zip(record.shape, record.stride, strict=True):
        places = places[..., None] + torch.arange(size) * stride
    return places.flatten()


def _listed(numbers: list[int]) -> str:
    return f"part{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
