"""Pictures that are made of patches, one of each token: a patch is a rectangle of places, and not a line of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.check.properties.finding import Finding
from regard.check.roles.instances import TaggedRun
from regard.check.target import Invocation
from regard.check.trace.operation import Operation

__all__ = ["put_back_findings"]


def put_back_findings(invocation: Invocation, run: TaggedRun) -> Iterator[Finding]:
    """A picture as large as the one that was handed over, in which what a matrix made of a token is no patch.

    As many numbers as a patch has, in each channel, but at other places than those of a patch.

    Args:
        invocation: a call of a picture.
        run: the call.
    """
    stream = invocation.streams[0]
    given = invocation.arguments[stream.argument]
    if len(stream.token_axes) != 2 or given.ndim != 4 or stream.batch_axis is None or not run.tags.returned:
        return
    tags, sides = run.tags.returned[0], [given.shape[axis] for axis in stream.token_axes]
    if tags.ndim != 4 or [tags.shape[axis] for axis in stream.token_axes] != sides:
        return
    (channels,) = {0, 1, 2, 3} - {stream.batch_axis, *stream.token_axes}
    maker = _maker(run, tags)
    if maker is None or torch.unique(tags).numel() != tags.numel():
        return
    rows = (tags - run.first_tag[maker.index]) // maker.outputs[0].shape[-1]
    tokens = rows.permute(stream.batch_axis, channels, *stream.token_axes)[0]
    counts = [torch.unique(each, return_counts=True)[1] for each in tokens]
    area = int(counts[0][0])
    if any(not torch.equal(torch.unique(each), torch.unique(tokens[0])) for each in tokens):
        return  # it is of one channel, or of some
    if area < 2 or any(bool((each != area).any()) for each in counts):
        return
    patch = _sides_of_a_patch(invocation, run)
    if patch is None or math.prod(patch) != area or sides[0] % patch[0] or sides[1] % patch[1]:
        return
    height, width = patch
    cut = tokens.reshape(len(tokens), -1, height, sides[1] // width, width).movedim(2, 3).flatten(3)
    if bool((cut == cut[..., :1]).all()):
        return
    message = (
        f"the {area} numbers that a token gives to each channel of the picture are no patch of {height} x {width} "
        "places: rows of patches and rows within them are not interleaved"
    )
    yield Finding("violation", "patches-put-back", "output", message, maker.location, maker.module)


def _maker(run: TaggedRun, tags: Tensor) -> Operation | None:
    """The product of rows with a matrix that made all numbers of a tensor; None where none did."""
    first, last = int(tags.min()), int(tags.max())
    for product in run.products:
        made, start = product.operation.outputs[0], run.first_tag[product.operation.index]
        if start <= first and last < start + made.data.numel() and product.operation.name != "convolution":
            return product.operation if product.left.learned or product.right.learned else None
    return None


def _sides_of_a_patch(invocation: Invocation, run: TaggedRun) -> tuple[int, int] | None:
    """Height and width of the patches that the picture is cut into, by a convolution or a reshape; None of others."""
    stream = invocation.streams[0]
    sides = [invocation.arguments[stream.argument].shape[axis] for axis in stream.token_axes]
    for operation in run.trace:
        if operation.name == "convolution" and operation.inputs[0].data.ndim == 4:
            kernel, made = operation.inputs[1].shape[-2:], operation.outputs[0].shape[-2:]
            is_cut = list(operation.inputs[0].shape[-2:]) == sides
            if is_cut and [each * size for each, size in zip(kernel, made, strict=True)] == sides:
                return kernel[0], kernel[1]
    given = run.given.get(stream.argument)
    for product in run.products if given is not None else ():
        index, number = product.left_place if product.right.learned else product.right_place
        taken = run.tags.inputs[index][number]
        if given is None or not (product.left.learned or product.right.learned) or taken.numel() != given.numel():
            continue
        if int(taken.min()) < int(given.min()) or int(taken.max()) > int(given.max()):
            continue
        places = taken.flatten(0, -2)[0] - int(given.min())
        at = torch.unravel_index(places, given.shape)
        rows, columns = (len(torch.unique(at[axis])) for axis in stream.token_axes)
        return rows, columns
    return None
