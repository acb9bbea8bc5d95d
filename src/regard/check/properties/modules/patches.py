"""Pictures that are cut into tokens: each holds all channels of one place, or of the places of one patch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.target import Invocation, Stream
from regard.check.target.names import constructor_meaning
from regard.check.target.preparation import modules_in
from regard.check.target.sizes import both_sides
from regard.check.trace.operation import Operation

__all__ = ["patch_findings"]


def patch_findings(invocation: Invocation, run: TaggedRun) -> Iterator[Finding]:
    """Each token that a map of features was cut into holds all channels of one place.

    A token is a row of what is added to, normalized or projected; a view alone may be one of several on the way there.
    """
    yield from _cut_by_reshapes(invocation, run)
    softmaxes = [each for each in run.trace if each.name in SOFTMAXES]
    scores = set[int]().union(*(run.owner_of(run.tags.inputs[each.index][0]) for each in softmaxes))
    for stream, channel_axis, tags in _maps(invocation, run):
        if channel_axis < 3 and _are_apart(run.given[stream.argument].shape, stream.token_axes, channel_axis):
            tokens = _first_tokens(run, tags, 0)
            if tokens is not None and not tokens[1]:
                yield _mixed("places", tokens[0])
    for operation in run.trace:
        if operation.name != "convolution" or operation.outputs[0].data.ndim != 4:
            continue
        if operation.index not in run.first_tag:
            continue  # it moves numbers and makes none
        if run.owner_of(run.tags.inputs[operation.index][0]) & scores:
            continue  # it mixes the heads of scores or weights
        shape = operation.outputs[0].shape
        tags = torch.arange(math.prod(shape)).reshape(shape) + run.first_tag[operation.index]
        tokens = _first_tokens(run, tags, operation.index + 1)
        if tokens is not None:
            yield from () if tokens[1] else (_mixed("patches", tokens[0]),)
            return


def _maps(invocation: Invocation, run: TaggedRun) -> Iterator[tuple[Stream, int, Tensor]]:
    """The maps among the inputs: each with its axis of channels, and its tags as (samples, channels, rows, columns)."""
    for stream in invocation.streams:
        given = run.given.get(stream.argument)
        if given is None or given.ndim != 4 or len(stream.token_axes) != 2 or stream.batch_axis is None:
            continue
        (channel_axis,) = {0, 1, 2, 3} - {stream.batch_axis, *stream.token_axes}
        yield stream, channel_axis, given.permute(stream.batch_axis, channel_axis, *stream.token_axes)


def _cut_by_reshapes(invocation: Invocation, run: TaggedRun) -> Iterator[Finding]:
    """The first matrix that takes the numbers of a picture in rows, each of which is to be a patch of it.

    A row may also be a whole channel, as where channels attend to one another.
    """
    for _, _, tags in _maps(invocation, run):
        start, count = int(tags.min()), tags.numel()
        for product in run.products:
            index, number = product.left_place if product.right.learned else product.right_place
            taken = run.tags.inputs[index][number]
            if not (product.left.learned or product.right.learned) or taken.numel() != count:
                continue
            if not bool(((taken >= start) & (taken < start + count)).all()):
                continue
            rows = taken.flatten(0, -2) - start
            where = torch.empty(count, 4, dtype=torch.long)
            where[tags.flatten() - start] = torch.cartesian_prod(*(torch.arange(each) for each in tags.shape))
            wrong = [each for each in where[rows] if not _is_a_patch(each, tags.shape)]
            if rows.shape[-1] > tags.shape[1] > 1 and wrong:
                yield _mixed("patches", product.operation)
            elif (other := _other_sides(invocation, where[rows])) is not None:
                (height, width), told = other
                message = (
                    f"a token holds a rectangle of {height} x {width} places of the picture, and a patch is told to be "
                    f"{told[0]} x {told[1]}"
                )
                yield Finding("violation", "patches-whole", "projections", message, product.operation.location)
            return


def _is_a_patch(places: Tensor, shape: Sequence[int]) -> bool:
    """Whether some numbers of a picture are all channels of a rectangle of places, or a whole channel."""
    several = [torch.unique(each) for each in places.unbind(-1)]
    if len(several[0]) > 1:
        return False
    if len(several[1]) == 1 and len(places) == shape[2] * shape[3]:
        return True
    is_whole = len(several[1]) == shape[1] and len(places) == math.prod(len(each) for each in several)
    return is_whole and all(int(each[-1] - each[0]) == len(each) - 1 for each in several[2:])


def _other_sides(invocation: Invocation, places: Tensor) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The sides of what each token holds, and those of the one patch that its modules tell, where it is only as large.

    Args:
        invocation: the call.
        places: (tokens, numbers, 4): of each number of a token its sample, channel, row and column.
    """
    told = {
        sides
        for module in modules_in(invocation.target)
        for part in module.modules()
        for name, value in vars(part).items()
        if constructor_meaning(name) == "patch" and (sides := both_sides(value)) is not None
    }
    held = {tuple(len(torch.unique(each)) for each in one[:, 2:].unbind(-1)) for one in places}
    if len(told) != 1 or len(held) != 1:
        return None
    (height, width), patch = held.pop(), told.pop()
    is_other = height * width == patch[0] * patch[1] and {height, width} != {*patch}
    return ((height, width), patch) if is_other else None


def _mixed(called: str, operation: Operation) -> Finding:
    message = f"the numbers of a token come from several {called}: channels and {called} are mixed"
    return Finding("violation", "patches-whole", "projections", message, operation.location)


def _are_apart(shape: Sequence[int], token_axes: Sequence[int], channel_axis: int) -> bool:
    """Whether there are as many channels as in no row, column or map of places: its rows are of channels."""
    channels, sides = shape[channel_axis], [shape[axis] for axis in token_axes]
    return channels not in (*sides, math.prod(sides))


def _first_tokens(run: TaggedRun, tags: Tensor, since: int) -> tuple[Operation, bool] | None:
    """The first operation that takes all tokens of a map as rows, and whether each row is of one place.

    Args:
        run: the run.
        tags: of the map (samples, channels, rows, columns).
        since: the index of the first operation that may take them.
    """
    samples, channels, places = tags.shape[0], tags.shape[1], tags.shape[2] * tags.shape[3]
    if places < 2 or channels < 2 or places == channels:  # as many: rows may be channels on their way
        return None
    start, count = int(tags.min()), tags.numel()
    place_of = torch.empty(count, dtype=torch.long)
    place_of[tags.flatten(2) - start] = torch.arange(places).expand(samples, channels, places)
    for later in run.trace.operations[since:]:
        if later.is_view:
            continue
        for each in (*run.tags.inputs[later.index], *run.tags.outputs[later.index])[:2]:
            mine = (each >= start) & (each < start + count)
            if each.ndim not in (2, 3) or each.shape[-1] != channels:
                continue
            rows = mine.all(-1)
            if int(mine.sum()) == count and int(rows.sum()) == samples * places:
                spatial = place_of[each[rows] - start]
                return later, bool((spatial == spatial[:, :1]).all())
    return None
