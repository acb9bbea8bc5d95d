"""Layers, each of an attention and a feed-forward network, of which one alone is added to what it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from regard.check.properties.finding import Finding
from regard.check.properties.modules.feed_forward import is_of_one_place
from regard.check.properties.modules.residuals import ACTIVATIONS, is_joined
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, Trace, reached

__all__ = ["layer_residual_findings"]

MIN_LAYERS = 2
"""In which a residual is missing: one alone may be there to gather another sequence."""
IN_A_BATCH = 2
"""Axes of a matrix; learned vectors have more where they stand beside those of a batch."""
ELEMENTWISE = ("add", "sub", "mul", "lerp", "cat", "addcmul")


def layer_residual_findings(run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Layers in all of which the attention, or the feed-forward network, is added to nothing, and the other is.

    Args:
        run: the run.
        instances: its attentions.
    """
    if len(instances) < MIN_LAYERS or len({each.sums_location for each in instances}) > 1:
        return
    if _around_feed_forward_alone(run.trace, instances):
        added, lost = "feed-forward network", "attention"
    elif _around_attentions_alone(run, instances):
        added, lost = "attention", "feed-forward network"
    else:
        return
    message = (
        f"in every layer the {added} is added to what it reads, and the {lost} is not: the vector of the token itself "
        "is lost"
    )
    yield Finding("violation", "residual-of-the-input", "block", message, instances[0].sums_location)


def _around_feed_forward_alone(trace: Trace, instances: Sequence[AttentionInstance]) -> bool:
    """Whether each attention's output meets nothing else, and that of each feed-forward network is added."""
    made = {each.storage for operation in trace if not operation.is_view for each in operation.outputs}
    made |= {each.storage for each in trace.arguments.values()}
    ends = [*(each.sums[0].operation.index for each in instances[1:]), len(trace)]
    for instance, end in zip(instances, ends, strict=True):
        later = trace.operations[instance.sums[-1].operation.index + 1 : end]
        attended = reached({each.operation.outputs[0].storage for each in instance.sums}, later)
        activated = {
            record.storage
            for each in later
            if each.name.rstrip("_") in ACTIVATIONS and each.inputs[0].storage in attended
            for record in each.outputs
        }
        network = reached(activated, later)
        if any(_is_met(each, attended, made) for each in later) or not any(is_joined(each, network) for each in later):
            return False
    return True


def _around_attentions_alone(run: TaggedRun, instances: Sequence[AttentionInstance]) -> bool:
    """Whether each attention's output is added, behind a feed-forward network to what that one returned alone.

    Another sequence may begin there, as the target behind the encoder of a source.
    """
    trace, network, before, found = run.trace, set[int](), set[int](), 0
    products = {each.operation.index for each in run.products} | {each.index for each in trace if is_of_one_place(each)}
    starts = [each.sums[-1].operation.index + 1 for each in instances]
    for number, instance in enumerate(instances):
        later = trace.operations[starts[number] :]
        attended = reached({each.operation.outputs[0].storage for each in instance.sums}, later)
        total = next((each for each in later if is_joined(each, attended)), None)
        if total is None:
            return False
        carried = [each for each in total.inputs if network and each.storage not in attended]
        if any(each.storage in before - network for each in carried):
            return False  # something else is carried from layer to layer
        found += any(each.storage in network for each in carried)
        if number + 1 == len(instances):
            return found > 0
        before = attended
        layer = trace.operations[total.index + 1 : starts[number + 1]]
        hidden, network = set[int](), set[int]()
        for operation in layer:
            taken = {each.storage for each in operation.inputs}
            numbers = operation.inputs[0].data.numel() if operation.inputs else 0
            if is_joined(operation, hidden | network) and numbers == total.inputs[0].data.numel():
                return False  # it is added to something, of as many numbers: heads may have been joined before
            if taken & network or (taken & hidden and operation.index in products):
                network.update(each.storage for each in (*operation.outputs, *operation.written))
            elif taken & hidden or (taken & attended and operation.name.rstrip("_") in ACTIVATIONS):
                hidden.update(each.storage for each in (*operation.outputs, *operation.written))
    return True


def _is_met(operation: Operation, some: Collection[int], made: Collection[int]) -> bool:
    """Whether something of some memory meets something else, as in a sum or the gates of a GRU.

    That was computed or handed over, or learned vectors that ask as a sequence does, the same for each sample.
    """
    several = [
        each
        for each in operation.inputs
        if each.data.ndim > 1 and (each.storage in made or (each.learned and each.data.ndim > IN_A_BATCH))
    ]
    shapes = {each.shape for each in several}
    is_elementwise = operation.name.rstrip("_") in ELEMENTWISE
    return is_elementwise and len(shapes) == 1 and len({each.storage in some for each in several}) > 1
