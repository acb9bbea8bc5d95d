"""What stands around the attentions: samples apart and alike, places and patches whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.check.properties.finding import Finding
from regard.check.properties.modules.larger_batches import larger_batch_findings
from regard.check.properties.modules.patches import patch_findings
from regard.check.properties.modules.routing_weights import routing_weight_findings
from regard.check.properties.outputs.exchanged_axes import exchanged_axis_findings
from regard.check.properties.outputs.patches_put_back import put_back_findings
from regard.check.properties.outputs.unfolded_grids import unfolded_grid_findings
from regard.check.roles.influence import Influence, differs, influence_of, is_changed, record_invocation
from regard.check.roles.instances import TaggedRun
from regard.check.target import Failed, Invocation
from regard.check.target.argument import source_of
from regard.check.target.documented_shapes import documented_letters
from regard.check.target.preparation import modules_in
from regard.check.trace.operation import Trace

__all__ = ["is_random", "surrounding_findings"]

MATRIX = 3
"""Axes of what has numbers for each two tokens of each sample, or a vector for each token."""


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
        found = list(_samples_apart(invocation, influence)) or list(_others_apart(invocation, base))
        found = found or list(_samples_left_out(invocation, base, influence))
        if not found and holds and not is_random(invocation):
            found = list(_samples_alike(invocation, base, influence)) or list(larger_batch_findings(invocation, base))
        yield from found
    yield from _without_statistics(invocation)
    patches = list(patch_findings(invocation, run))
    yield from patches
    if base.outputs and holds:
        yield from _places(invocation, base)
        yield from put_back_findings(invocation, run)
        if not patches:  # else the way into patches is the cause
            yield from exchanged_axis_findings(invocation, base)
            yield from unfolded_grid_findings(invocation, base)
        yield from routing_weight_findings(invocation, base)


def _without_statistics(invocation: Invocation) -> Iterator[Finding]:
    """That a batch norm was made to keep no statistics: in the call it was given fixed ones (`target.preparation`)."""
    for module in modules_in(invocation.target):
        for name, each in module.named_modules():
            if isinstance(each, nn.modules.batchnorm._BatchNorm) and each.track_running_stats is False:
                message = (
                    f"{name or 'it'} keeps no statistics of batches (track_running_stats=False): it mixes the samples "
                    "of a batch in eval() as well, and was judged with fixed ones"
                )
                yield Finding("note", "samples-apart", "output", message)
                return


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


def _samples_left_out(invocation: Invocation, base: Trace, influence: Influence) -> Iterator[Finding]:
    """What is returned beside the first output, and is of one sample alone, as where the first axis is not of tokens.

    Weights may be those of one sample, to be looked at.
    """
    name = invocation.streams[0].argument
    rows = [
        number for number, (source, _) in enumerate(influence.runs) if source.kind == "sample" and source.stream == name
    ]
    if len(rows) < 2 or any(len(run.outputs) != len(base.outputs) for _, run in influence.runs):
        return
    for number, output in enumerate(base.outputs):
        numbers = output.data
        if number == 0 or not numbers.is_floating_point() or numbers.numel() < 2 or bool((numbers >= 0).all()):
            continue
        changing = [row for row in rows if bool(influence.returned(number)[row].any())]
        if len(changing) == 1:
            sample = influence.runs[changing[0]][0].index
            message = f"output {number} (counted from 0) depends on sample {sample} alone, and on none of the others"
            yield Finding("violation", "samples-apart", "output", message)
            return


def _others_apart(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """The same of what is handed over beside the sequences, and is written to be of each sample, as distances are."""
    source, first = source_of(invocation.target), invocation.streams[0]
    streams, output = {each.argument for each in invocation.streams}, base.outputs[0].data
    if first.batch_axis != 0 or (samples := invocation.arguments[first.argument].shape[0]) < 2:
        return
    for name, value in invocation.arguments.items():
        if name in streams or name in invocation.masks or not isinstance(value, Tensor) or value.ndim < MATRIX:
            continue
        letters = documented_letters(source, name)
        is_of_samples = letters.startswith("b") and letters.count("b") == 1 and len(letters) == value.ndim
        if not is_of_samples or len(value) != samples or len(output) != samples:
            continue
        changed = torch.cat([value[:1].roll(1, 1), value[1:]])
        run = record_invocation(invocation, {**invocation.arguments, name: changed})
        if run.error or not run.outputs or run.outputs[0].shape != base.outputs[0].shape:
            continue
        if bool(differs(output, run.outputs[0].data)[1:].any()):
            message = f"{name} of sample 0 changes the output of another sample: they are mixed"
            yield Finding("violation", "samples-apart", "output", message)
            return


def _samples_alike(invocation: Invocation, base: Trace, influence: Influence) -> Iterator[Finding]:
    """The same tokens give the same output in every sample of a batch, where its axis is that of what was given."""
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
        elif any(isinstance(each, Tensor) and each.numel() > 1 for each in tree_leaves(value)):
            return  # it may say something else of each sample
    run = record_invocation(invocation, arguments)
    if run.error or not run.outputs or run.outputs[0].shape != base.outputs[0].shape:
        return
    output, depends = run.outputs[0].data, influence.returned(0)
    if output.ndim == MATRIX - 1 and count > 1 and len(output) > count and len(output) % count == 0:
        axis = 0  # rows of all samples below each other, those of the first one first
        output = output.reshape(count, -1, output.shape[-1])
        depends = depends.reshape(len(depends), *output.shape)
    if count < 2 or output.ndim <= axis or output.shape[axis] != count:
        return
    for row in influence.sources("sample"):
        index = influence.runs[row][0].index
        if any(bool(depends[row].select(axis, other).any()) for other in range(count) if other != index):
            return  # as heads that stand before the samples, and are as many
    for index in range(1, count):
        moved = differs(output.select(axis, 0), output.select(axis, index))
        if bool(moved.any()):
            message = f"the same tokens give another output as sample {index} of a batch than as sample 0"
            yield Finding("violation", "samples-alike", "positions", message)
            return


def is_random(invocation: Invocation) -> bool:
    """Whether its first output is drawn, in evaluation mode as well."""
    try:
        one, two = (invocation.outputs(invocation.run(seed=seed))[0] for seed in (0, 1))
    except (Failed, IndexError):
        return True
    return is_changed(one, two)


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
