"""Tokens that were put into another order, as a drawn one, and are put back into the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.trace.operation import Operation, Trace

__all__ = ["restored_order_findings", "rolled_back_findings"]

FEWEST = 3
"""Tokens of which an order is not its own inverse by chance alone."""


def restored_order_findings(base: Trace) -> Iterator[Finding]:
    """Tokens that are put back by the order which they were put into, and not by its inverse.

    He et al. 2021, "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377), section 3: the list of tokens
    is shuffled, a part is kept, and the full list, with mask tokens, is unshuffled.

    Args:
        base: a run.
    """
    ordered: list[tuple[Operation, Tensor, set[int]]] = []
    for operation in base:
        places = _places(operation)
        if places is None:
            continue
        for _, before, made in ordered:
            kept = before.shape[1]
            is_same = places.shape[1] >= kept and torch.equal(places[:, :kept], before)
            if operation.inputs[0].storage not in made or not is_same or not _is_whole(places):
                continue
            token = torch.where(places < kept, before.gather(1, places.clamp(max=kept - 1)), -1)
            moved = (token >= 0) & (token != torch.arange(places.shape[1]))
            if bool(moved.any()):
                sample, at = (int(each) for each in moved.nonzero()[0])
                message = (
                    f"tokens that were put into an order, by {places[sample].tolist()}, are put back by the same "
                    f"numbers, not by their inverse: token {int(token[sample, at])} comes to place {at}"
                )
                yield Finding("violation", "order-restored", "output", message, operation.location)
                return
        ordered.append((operation, places, base.made_of([operation.outputs[0].storage])))


def rolled_back_findings(base: Trace, several: Sequence[Evidence]) -> Iterator[Finding]:
    """Tokens that were rolled, and behind an attention are rolled on by as much, and added to what was not rolled.

    Liu et al. 2021, "Swin Transformer": the cyclic shift before windows are cut is reversed behind them.

    Args:
        base: a run.
        several: the evidence of its attentions.
    """
    rolls = [each for each in base if each.name == "roll" and len(each.args) > 2 and each.inputs[0].data.ndim > 2]
    for first, last in itertools.pairwise(rolls):
        are_between = any(
            first.index < score.operation.index < last.index for each in several for score in each.base.instance.scores
        )
        if not are_between or not _goes_on(first, last):
            continue
        rolled, behind = (base.made_of([each.outputs[0].storage]) for each in (first, last))
        until = next((each.index for each in rolls if each.index > last.index), len(base.operations))
        if last.inputs[0].storage not in rolled:
            continue
        for operation in base.operations[last.index + 1 : until]:
            if operation.name != "add" or len(operation.inputs) != 2:
                continue
            one, other = (each.storage for each in operation.inputs)
            for kept, added in ((one, other), (other, one)):
                if added in behind and kept not in rolled and first.inputs[0].storage in base.made_of([kept]):
                    message = (
                        f"tokens are rolled by {tuple(first.args[1])} before the attention, and behind it by as much "
                        "again, not back: what was read for a token is added to another one"
                    )
                    yield Finding("violation", "order-restored", "output", message, last.location)
                    return


def _goes_on(first: Operation, last: Operation) -> bool:
    """Whether two rolls are the same, and together not the whole of an axis."""
    shape = first.outputs[0].shape
    shifts = dict(zip((each % len(shape) for each in first.args[2]), first.args[1], strict=False))
    again = dict(zip((each % len(shape) for each in last.args[2]), last.args[1], strict=False))
    is_same = first.outputs[0].shape == last.outputs[0].shape and shifts == again
    return is_same and any(2 * shift % shape[axis] for axis, shift in shifts.items())


def _places(operation: Operation) -> Tensor | None:
    """(samples, tokens): the place that each token of a result is taken from, where it is another one in each."""
    if operation.name != "gather" or len(operation.inputs) != 2:
        return None
    given, index = operation.inputs
    axis = int(operation.args[1]) % max(1, given.data.ndim)
    if given.data.ndim != 3 or axis != 1 or not given.data.is_floating_point() or given.shape[1] < FEWEST:
        return None
    places = index.data
    if not bool((places == places[..., :1]).all()):
        return None
    places = places[..., 0]
    rows = places.sort(-1).values
    is_moved = bool((places != torch.arange(places.shape[1])).any())
    return places if is_moved and bool((rows.diff(dim=-1) > 0).all()) else None


def _is_whole(places: Tensor) -> bool:
    """Whether all places are taken, each once."""
    return torch.equal(places.sort(-1).values, torch.arange(places.shape[1]).expand(places.shape))
