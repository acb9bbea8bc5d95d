"""Values that are multiplied by the weights of a query and averaged, where the weights sum to 1 already."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.trace.operation import Operation, Trace

__all__ = ["averaged_message", "averaged_value", "is_multiplied"]


def averaged_value(run: TaggedRun) -> Finding | None:
    """That values times weights are averaged over the keys; None where they are not, or are multiplied by their number.

    Args:
        run: in which no weighted sum was found.
    """
    scores = {each.operation.index for each in run.bilinear}
    rows = [
        _rows(run.tags.outputs[each.index][0], int(each.args[1]), run.num_tags)
        for each in run.trace
        if each.name in SOFTMAXES and scores & run.owner_of(run.tags.inputs[each.index][0])
    ]
    products = {each.outputs[0].storage: each for each in run.trace if each.name == "mul" and len(each.inputs) == 2}
    for mean in run.trace if rows else ():
        product = products.get(mean.inputs[0].storage) if mean.name == "mean" and mean.inputs else None
        axes = mean.args[1] if mean.name == "mean" and len(mean.args) > 1 else None
        if product is None or not isinstance(axes, list | tuple) or len(axes) != 1:
            continue
        shape = product.outputs[0].shape
        count = shape[axes[0]] if mean.inputs[0].shape == shape else 0
        for number, record in enumerate(product.inputs):
            tags = run.tags.inputs[product.index][number]
            if count < 2 or not any(_is_of_rows(each, tags.broadcast_to(shape).movedim(axes[0], -1)) for each in rows):
                continue
            sums = record.data.broadcast_to(shape).sum(axes[0])
            if torch.allclose(sums, torch.ones_like(sums)) and not is_multiplied(run.trace, mean, count):
                return Finding("violation", "weights-kept", "weights", averaged_message(count), mean.location)
    return None


def averaged_message(count: int) -> str:
    """What is told of values times weights whose mean over so many keys is taken."""
    return (
        f"values times weights are averaged over the {count} keys, and not summed: the weights of a query "
        f"sum to 1 already, and are divided by {count} once more"
    )


def _rows(tags: Tensor, axis: int, count: int) -> Tensor:
    """(tags + 1): the row of a softmax that each of its results is of; -1 of others."""
    found = torch.full((count + 1,), -1)
    moved = tags.movedim(axis, -1)
    found[moved.flatten()] = torch.arange(moved[..., 0].numel()).repeat_interleave(moved.shape[-1])
    return found


def _is_of_rows(rows: Tensor, tags: Tensor) -> bool:
    """Whether along the last axis stand the weights of one row each, every one of them once."""
    found, (row, count) = rows[tags], (tags[..., :1], tags.shape[-1])
    is_one = bool((found >= 0).all()) and bool((found == rows[row]).all())
    return is_one and count > 1 and int((rows == found.flatten()[0]).sum()) == count


def is_multiplied(trace: Trace, mean: Operation, count: int) -> bool:
    """Whether what an average returns is multiplied by the number of keys."""
    made = trace.made_of([mean.outputs[0].storage])
    return any(
        each.name.rstrip("_") in ("mul", "div")
        and each.inputs[0].storage in made
        and any(abs(float(number)) in (count, 1 / count) for number in _numbers(each))
        for each in trace
    )


def _numbers(operation: Operation) -> list[float]:
    """The single numbers among the arguments of an operation."""
    plain = [each for each in operation.args if isinstance(each, int | float)]
    return [*plain, *(each.data.item() for each in operation.inputs[1:] if each.data.numel() == 1)]
