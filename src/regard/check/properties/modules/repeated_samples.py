"""Several samples of each item in one batch: what the items share goes to the samples of the same item."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.roles.influence import stream_sizes
from regard.check.target import Invocation
from regard.check.target.argument import source_of
from regard.check.target.errors import Failed
from regard.check.target.signature import readings

__all__ = ["repeated_sample_findings"]

SEVERAL = 2
"""Samples of an item."""
SAME = 1e-9


def repeated_sample_findings(invocation: Invocation) -> Iterator[Finding]:
    """What is found of an argument that counts the samples of an item, 1 by default, and repeats what they share.

    Where the documentation says in which order the samples stand, as by s = torch.cat([s] * count), and the code pairs
    them with what is repeated in the other order. All samples of an item are the same here, and so is what is returned
    for them.

    Args:
        invocation: the call of one sample of each item.
    """
    target, source = invocation.target, source_of(invocation.target)
    first = next(iter(invocation.streams), None)
    if not isinstance(target, nn.Module) or first is None or first.batch_axis != 0:
        return
    for count in [each.name for each in readings(target)[0] if type(each.default) is int and each.default == 1]:
        told = re.search(
            rf"\b(\w+)\s*=\s*(?:torch\.)?cat\(\s*[\[(]\s*\w+,?\s*[\])]\s*\*\s*{re.escape(count)}\b", source
        )
        if told is None or told[1] != first.argument or count in invocation.arguments or not _repeats(source, count):
            continue
        as_told, exchanged = (_is_of_its_item(invocation, count, in_turn=each) for each in (True, False))
        if as_told is False and exchanged is True:
            message = (
                f"with {count}={SEVERAL}, samples stand as by torch.cat([{first.argument}] * {count}), and what they "
                "share is repeated item by item: a sample is given what is of another item"
            )
            yield Finding("violation", "samples-of-their-item", "output", message)


def _repeats(source: str, count: str) -> bool:
    return re.search(rf"\.(?:repeat_interleave|repeat|tile)\([^\n]*\b{re.escape(count)}\b", source) is not None


def _is_of_its_item(invocation: Invocation, count: str, *, in_turn: bool) -> bool | None:
    """Whether the samples of each item return what one returns; None where no such call runs.

    Args:
        invocation: the call of one sample of each item.
        count: the argument that counts them.
        in_turn: whether the first samples of all items stand before the second ones.
    """
    stream = invocation.streams[0]
    items, given = stream_sizes(invocation, stream)[0], invocation.arguments
    others = [
        name
        for name, value in given.items()
        if name != stream.argument and isinstance(value, Tensor) and value.ndim and len(value) == items
    ]
    try:
        one = invocation.outputs(invocation.run())[0]
    except (Failed, IndexError):
        return None
    if items < 2 or len(one) != items:
        return None
    found = list[bool]()
    for chosen in product((True, False), repeat=len(others)):
        repeated = {stream.argument, *(name for name, is_one in zip(others, chosen, strict=True) if is_one)}
        arguments: dict[str, Any] = {
            name: _repeated(value, in_turn=in_turn) if name in repeated else value for name, value in given.items()
        }
        try:
            several = invocation.outputs(invocation.run(arguments | {count: SEVERAL}))[0]
        except (Failed, IndexError):
            continue
        expected = _repeated(one, in_turn=in_turn)
        found.append(several.shape == expected.shape and torch.allclose(several, expected, rtol=SAME, atol=SAME))
    return any(found) if found else None


def _repeated(value: Tensor, *, in_turn: bool) -> Tensor:
    return torch.cat([value] * SEVERAL) if in_turn else value.repeat_interleave(SEVERAL, 0)
