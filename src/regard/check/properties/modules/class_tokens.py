"""Class tokens: what is read in the end is the token that was put beside the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from regard.check.properties.finding import Finding
from regard.check.trace.operation import Operation, Trace

__all__ = ["class_token_findings"]

_NAME = re.compile(r"(?:^|[._])(?:cls|class)(?:_?(?:tokens?|tok|emb\w*))?$", re.I)


def class_token_findings(target: Any, trace: Trace) -> Iterator[Finding]:
    """A learned class token stands beside the tokens, and the one token that is read in the end is another.

    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.1, equation 4.

    Args:
        target: what was called.
        trace: its run.
    """
    if not isinstance(target, nn.Module):
        return
    learned = [each.detach().flatten() for name, each in target.named_parameters() if _NAME.search(name)]
    for join in trace:
        place = _place(join, learned) if len(learned) == 1 else None
        if place is None:
            continue
        count = join.outputs[0].shape[-2]
        made = trace.made_of([join.outputs[0].storage])
        reads = [each for each in trace.operations[join.index + 1 :] if _reads_a_token(each, made, count)]
        places = {each.args[2] % count for each in reads}
        are_all_returned = any(each.shape[-2:-1] == (count,) for each in trace.outputs)
        if len(places) == 1 and place not in places and not are_all_returned:
            message = (
                f"the class token is token {place} of {count}, and what is read in the end is token {places.pop()}"
            )
            yield Finding("violation", "class-token-read", "block", message, reads[-1].location)
            return


def _place(join: Operation, learned: list[torch.Tensor]) -> int | None:
    """Where a class token stands among the tokens that are joined: first or last; None where none is joined."""
    if join.name != "cat" or len(join.inputs) < 2 or join.outputs[0].data.ndim != 3:
        return None
    for at, each in ((0, join.inputs[0]), (join.outputs[0].shape[-2] - 1, join.inputs[-1])):
        if each.shape[-2] == 1 and each.data.ndim == 3 and torch.equal(each.data[0, 0], learned[0].to(each.data.dtype)):
            return at
    return None


def _reads_a_token(operation: Operation, made: set[int], count: int) -> bool:
    """Whether it takes one of so many tokens out of what is in some memory."""
    if operation.name != "select" or len(operation.args) < 3 or operation.inputs[0].storage not in made:
        return False
    shape, axis = operation.inputs[0].shape, operation.args[1]
    return len(shape) == 3 and axis % 3 == 1 and shape[1] == count
