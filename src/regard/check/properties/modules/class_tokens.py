"""Class tokens: what is read in the end is the token that was put beside the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.check.properties.finding import Finding
from regard.check.trace.operation import Operation, TensorRecord, Trace

__all__ = ["class_token_findings"]

_NAME = re.compile(r"(?:^|[._])(?:cls|class)(?:_?(?:tokens?|tok|emb\w*))?$", re.I)

_DISTILLED = re.compile(r"(?:^|[._])dist(?:ill(?:ed|ation)?)?_?(?:tokens?|tok|emb\w*)$", re.I)
"""Names of a token that learns what a teacher says (Touvron et al. 2021, arXiv:2012.12877)."""


@dataclass(frozen=True)
class _RowsAdded:
    """Rows of a table that are added to tokens."""

    table: int
    """The memory of the whole table."""
    rows: range
    operation: Operation


def class_token_findings(target: Any, trace: Trace) -> Iterator[Finding]:
    """A learned class token beside the tokens that shares a position with one of them, or is not read in the end.

    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.1, equation 4.

    Args:
        target: what was called.
        trace: its run.
    """
    yield from _positions_shared(trace)
    if not isinstance(target, nn.Module):
        return
    yield from _read_twice(target, trace)
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


def _read_twice(target: nn.Module, trace: Trace) -> Iterator[Finding]:
    """A distillation token that nothing reads in the end, where two read the class token beside it.

    Touvron et al. 2021, "Training data-efficient image transformers", section 4: each has a classifier of its own. A
    model that reads the class token once does without its teacher on purpose.
    """
    named = {_NAME: list[torch.Tensor](), _DISTILLED: list[torch.Tensor]()}
    for name, each in target.named_parameters():
        for pattern, found in named.items():
            found += [each.detach().flatten()] if pattern.search(name) else []
    for join in trace:
        first, second = (_places_of(join, each) for each in named.values())
        if len(first) != 1 or len(second) != 1:
            continue
        count = join.outputs[0].shape[-2]
        made = trace.made_of([join.outputs[0].storage])
        after = trace.operations[join.index + 1 :]
        reads = [each for each in after if _reads_a_token(each, made, count)]
        if not reads:
            continue
        tokens = reads[-1].inputs[0]
        last = [each for each in reads if each.inputs[0].storage == tokens.storage]
        places = [each.args[2] % count for each in last]
        if len(places) > 1 and {*places} == {*first} and not any(_takes_others(each, tokens) for each in after):
            message = (
                f"the class token, token {first[0]} of {count}, is read {len(places)} times in the end, and the "
                f"distillation token, token {second[0]}, never"
            )
            yield Finding("violation", "class-token-read", "block", message, last[-1].location)
            return


def _takes_others(operation: Operation, tokens: TensorRecord) -> bool:
    """Whether tokens are taken otherwise than one at a time, as those of the patches, or a mean of all."""
    given = [each for each in operation.inputs if (each.storage, each.shape) == (tokens.storage, tokens.shape)]
    is_of_all = operation.name == "slice" and operation.outputs[0].shape == tokens.shape
    return bool(given) and operation.name != "select" and not is_of_all


def _places_of(join: Operation, learned: list[torch.Tensor]) -> list[int]:
    """Where learned tokens stand among the tokens that are joined."""
    if join.name != "cat" or len(join.inputs) < 2 or join.outputs[0].data.ndim != 3:
        return []
    found, place = [], 0
    for each in join.inputs:
        if each.data.ndim != 3:
            continue  # no numbers and one axis: cat takes it for nothing
        if each.shape[-2] == 1 and any(torch.equal(each.data[0, 0], one.to(each.data.dtype)) for one in learned):
            found.append(place)
        place += each.shape[-2]
    return found


def _positions_shared(trace: Trace) -> Iterator[Finding]:
    """A token that is put beside the others, and has the row of a table of positions that one of them has as well.

    Args:
        trace: a run.
    """
    added: dict[int, _RowsAdded] = {}
    for operation in trace:
        if operation.is_addition:
            for table, other in (operation.inputs, operation.inputs[::-1]):
                rows = _rows(table) if table.learned and table.storage != other.storage else None
                if rows is not None:
                    added[operation.outputs[0].storage] = _RowsAdded(table.storage, rows, operation)
        elif operation.name == "cat" and len(operation.inputs) == 2:
            parts = [added[each.storage] for each in operation.inputs if each.storage in added]
            if len(parts) < 2 or parts[0].table != parts[1].table:
                continue
            alone, others = sorted(parts, key=lambda each: len(each.rows))
            if len(alone.rows) == 1 < len(others.rows) and alone.rows[0] in others.rows:
                message = (
                    f"a token that is put beside the others has row {alone.rows[0]} of the table of positions, and so "
                    f"has one of these: they have rows {others.rows[0]} to {others.rows[-1]}"
                )
                yield Finding("violation", "positions-apart", "positions", message, others.operation.location)
                return


def _rows(table: TensorRecord) -> range | None:
    """The rows of a table that a part of it has; None of what is no part of one."""
    shape, stride = table.shape, table.stride
    if len(shape) < 2 or math.prod(shape[:-2]) != 1 or stride[-1] != 1 or stride[-2] != shape[-1]:
        return None
    first = table.offset // shape[-1]
    return range(first, first + shape[-2])


def _place(join: Operation, learned: list[torch.Tensor]) -> int | None:
    """Where a class token stands among the tokens that are joined: first or last; None where none is joined."""
    if join.name != "cat" or len(join.inputs) < 2 or join.outputs[0].data.ndim != 3:
        return None
    for at, each in ((0, join.inputs[0]), (join.outputs[0].shape[-2] - 1, join.inputs[-1])):
        if each.data.ndim == 3 and each.shape[-2] == 1 and torch.equal(each.data[0, 0], learned[0].to(each.data.dtype)):
            return at
    return None


def _reads_a_token(operation: Operation, made: set[int], count: int) -> bool:
    """Whether it takes one of so many tokens out of what is in some memory."""
    if operation.name != "select" or len(operation.args) < 3 or operation.inputs[0].storage not in made:
        return False
    shape, axis = operation.inputs[0].shape, operation.args[1]
    return len(shape) == 3 and axis % 3 == 1 and shape[1] == count
