"""What stands around the attentions: samples apart and alike, places and patches whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from regard.check.properties.finding import Finding
from regard.check.roles.influence import Influence, differs, influence_of, record_invocation
from regard.check.roles.instances import SOFTMAXES, TaggedRun
from regard.check.target import Failed, Invocation
from regard.check.trace.operation import Trace

__all__ = ["surrounding_findings"]


def surrounding_findings(
    invocation: Invocation, base: Trace, influence: Influence, run: TaggedRun, *, holds: bool
) -> Iterator[Finding]:
    """Violations of the whole call.

    Args:
        invocation: the call.
        base: its run.
        influence: of its samples.
        run: with the tags of what it computed.
        holds: whether nothing is wrong with the attentions: else samples differ for a reason that is known.
    """
    if base.outputs:
        found = list(_samples_apart(invocation, influence))
        yield from found if found or not holds else _samples_alike(invocation, base)
    if base.outputs and holds:
        yield from _places(invocation, base)
    yield from _patches(run)


def _samples_apart(invocation: Invocation, influence: Influence) -> Iterator[Finding]:
    for stream in invocation.streams:
        rows = [
            number
            for number, (source, _) in enumerate(influence.runs)
            if source.kind == "sample" and source.stream == stream.argument
        ]
        if len(rows) < 2:
            continue
        depends = influence.returned(0)[rows]
        if bool((depends.sum(0) > 1).any()):
            message = f"an output depends on {int(depends.sum(0).max())} samples of {stream.argument}: they are mixed"
            yield Finding("violation", "samples-apart", "output", message)
            return


def _samples_alike(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """The same tokens give the same output in every sample of a batch."""
    arguments = dict(invocation.arguments)
    streams = {each.argument: each.batch_axis for each in invocation.streams}
    axis = invocation.streams[0].batch_axis
    if axis is None or any(each != axis for each in streams.values()):
        return
    count = arguments[invocation.streams[0].argument].shape[axis]
    for name, value in arguments.items():
        if name in streams:
            if value.shape[axis] != count:
                return
            arguments[name] = value.narrow(axis, 0, 1).expand(value.shape).clone()
        elif isinstance(value, torch.Tensor) and value.numel() > 1:
            return  # it may say something else of each sample
    run = record_invocation(invocation, arguments)
    if _is_random(invocation):
        return
    if run.error or not run.outputs or run.outputs[0].shape != base.outputs[0].shape:
        return
    output = run.outputs[0].data
    if count < 2 or output.ndim <= axis or output.shape[axis] != count:
        return
    for index in range(1, count):
        moved = differs(output.select(axis, 0), output.select(axis, index))
        if bool(moved.any()):
            message = f"the same tokens give another output as sample {index} of a batch than as sample 0"
            yield Finding("violation", "samples-alike", "positions", message)
            return


def _is_random(invocation: Invocation) -> bool:
    """Whether it draws numbers, in evaluation mode as well."""
    try:
        first, second = (invocation.outputs(invocation.run(seed=seed)) for seed in (0, 1))
    except Failed:
        return True
    return any(one.shape != two.shape or bool(differs(one, two).any()) for one, two in zip(first, second, strict=False))


def _places(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Of a picture that comes out as large as it went in: each place depends on what was there."""
    stream = invocation.streams[0]
    value = invocation.arguments[stream.argument]
    if len(invocation.streams) != 1 or len(stream.token_axes) != 2 or base.outputs[0].shape != tuple(value.shape):
        return
    influence = influence_of(invocation, base, keep=lambda source: source.kind == "token")
    rows, columns = (value.shape[axis] for axis in stream.token_axes)
    if len(influence.runs) != rows * columns:
        return
    depends = influence.returned(0).movedim([1 + axis for axis in stream.token_axes], [1, 2]).flatten(3).any(-1)
    moved = depends.flatten(1)  # (tokens, places)
    lost = (~moved.diagonal() & moved.any(0)).nonzero().flatten()
    if len(lost) and bool(moved.diagonal().any()):
        row, column = divmod(int(lost[0]), columns)
        message = f"the output at row {row}, column {column} does not depend on what is there: it comes from elsewhere"
        yield Finding("violation", "output-at-its-place", "output", message)


def _patches(run: TaggedRun) -> Iterator[Finding]:
    """Each token that a picture was cut into holds all channels of one patch.

    A token is a row of what is added to, normalized or projected; a view alone may be one of several on the way there.
    """
    softmaxes = [each for each in run.trace if each.name in SOFTMAXES]
    scores = set[int]().union(*(run.owner_of(run.tags.inputs[each.index][0]) for each in softmaxes))
    for operation in run.trace:
        if operation.name != "convolution" or operation.outputs[0].data.ndim != 4:
            continue
        if run.owner_of(run.tags.inputs[operation.index][0]) & scores:
            continue  # it mixes the heads of scores or weights
        samples, channels, height, width = operation.outputs[0].shape
        start = run.first_tag[operation.index]
        places = height * width
        if places < 2 or channels < 2 or places == channels:  # as many: rows may be channels on their way
            continue
        for later in run.trace.operations[operation.index + 1 :]:
            if later.is_view:
                continue
            for tags in (*run.tags.inputs[later.index], *run.tags.outputs[later.index])[:2]:
                mine = (tags >= start) & (tags < start + samples * channels * places)
                if tags.ndim not in (2, 3) or tags.shape[-1] != channels:
                    continue
                rows = mine.all(-1)
                if int(mine.sum()) != samples * channels * places or int(rows.sum()) != samples * places:
                    continue
                spatial = (tags[rows] - start) % places
                if bool((spatial != spatial[:, :1]).any()):
                    message = "the numbers of a token come from several patches: channels and patches are mixed"
                    yield Finding("violation", "patches-whole", "projections", message, later.location)
                return
