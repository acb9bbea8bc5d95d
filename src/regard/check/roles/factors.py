"""The numbers of queries and keys as they are multiplied, and of what they were made of."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Trace

__all__ = ["data_of", "factor_tags", "factors_of", "numbers_by_tag", "sources_of", "stacked"]


def factors_of(instance: AttentionInstance, left: bool, trace: Trace) -> Tensor:
    """(scores, width): the left or right factors of each score.

    Of complex numbers the real and imaginary parts, so that their product is the real part of the score: the imaginary
    parts of right factors, which are conjugated where they are keys, have the other sign.
    """
    rows = []
    for each in instance.scores:
        place, terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        factors = data_of(trace, *place).flatten()[terms]
        if factors.is_complex():
            factors = torch.view_as_real((factors if left else factors.conj()).resolve_conj()).flatten(-2)
        rows.append(factors)
    return stacked(rows, 0.0)


def factor_tags(instance: AttentionInstance, left: bool) -> Tensor:
    """(scores, width): the tags of the left or right factors of each score."""
    tags, rows = instance.run.tags.inputs, []
    for each in instance.scores:
        (index, number), terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        rows.append(tags[index][number].flatten()[terms])
    return stacked(rows, 0)


def sources_of(instance: AttentionInstance, left: bool, trace: Trace) -> Tensor:
    """(scores, width): the numbers that these factors were made of, one by one; NaN where that is not known."""
    run, rows = instance.run, []
    numbers = numbers_by_tag(run, trace)
    beside = torch.zeros(run.num_tags + 1, dtype=torch.long)
    for kept, lost in run.tags.sums:
        beside[kept] = lost
    for each in instance.scores:
        place, terms = (each.left_place, each.left_terms) if left else (each.right_place, each.right_terms)
        parts = [run.tags.inputs[place[0]][place[1]]]
        if place in run.tags.imaginary:
            parts.append(run.tags.imaginary[place])
        made_of = (_unrepeated(tags.flatten()[terms], beside) for tags in parts)
        rows.append(torch.stack([numbers[tags] for tags in made_of], -1).flatten(-2))
    return stacked(rows, 0.0)


def numbers_by_tag(run: TaggedRun, trace: Trace) -> Tensor:
    """(tags): the numbers of a run that have a tag; NaN for all others.

    Args:
        run: that the tags are of.
        trace: it, or another run of the same operations.
    """
    numbers = torch.full((run.num_tags + 1,), float("nan"), dtype=torch.float64)
    for index, first in run.first_tag.items():
        data = data_of(trace, index, None)
        is_as_large = data.shape == data_of(run.trace, index, None).shape  # else it is of an expert with other tokens
        if is_as_large and not data.is_complex():
            numbers[first : first + data.numel()] = data.flatten().double()
    for name, tags in run.given.items():
        if trace.arguments[name].data.is_floating_point():
            numbers[tags.flatten()] = trace.arguments[name].data.flatten().double()
    return numbers


def _unrepeated(tags: Tensor, beside: Tensor) -> Tensor:
    """(rows, terms): tags, where one stands twice in a row that of what was added to it: a * sin + b * cos is of b."""
    ordered, order = tags.sort(dim=-1, stable=True)
    again = torch.zeros_like(tags, dtype=torch.bool)
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > 0)
    if not bool(again.any()):
        return tags
    again = torch.zeros_like(again).scatter(-1, order, again)
    found = torch.where(again & (beside[tags] > 0), beside[tags], tags)
    ordered = found.sort(dim=-1).values
    is_told = ~((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > 0)).any(-1, keepdim=True)
    return torch.where(is_told, found, tags)


def stacked(rows: list[Tensor], fill: float) -> Tensor:
    """Tensors one after the other along their first axis, each as wide as the widest."""
    width = max(each.shape[-1] for each in rows)
    return torch.cat([padded(each, width, fill) for each in rows])


def data_of(trace: Trace, operation: int, number: int | None) -> Tensor:
    """The numbers of a tensor that an operation takes; of its first output without a number."""
    taken = trace.operations[operation]
    return (taken.outputs[0] if number is None else taken.inputs[number]).data


def padded(tensor: Tensor, width: int, fill: float) -> Tensor:
    """A tensor with more numbers in its last axis: one number, again and again."""
    return torch.nn.functional.pad(tensor, (0, width - tensor.shape[-1]), value=fill)
