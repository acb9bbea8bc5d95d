"""Blocks whose attention and feed-forward network stand side by side: both read what one norm returned, or both not.

Wang and Komatsuzaki 2021, "GPT-J-6B"; Chowdhery et al. 2022, "PaLM" (arXiv:2204.02311), section 2:
y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.properties.code import code_of, comments_of_file, documentation_of_file
from regard.check.properties.finding import Finding
from regard.check.properties.modules.norm_calls import norm_calls
from regard.check.properties.modules.residuals import ACTIVATIONS, is_joined
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, Trace

__all__ = ["network_past_the_sum_findings", "parallel_branch_findings"]

PRODUCTS = frozenset({"mm", "addmm"})
_SIDE_BY_SIDE = re.compile(
    r"parallel|side[- ]by[- ]side|simultaneous|neo-?x|gpt[-_ ]?j\b|gptj|palm\b|falcon|pythia|codegen|cohere|\bphi\b"
    r"|vit[-_ ]?22b",
    re.I,
)
"""In code whose attention and network stand side by side: a word for it, or a model that has them so."""


def parallel_branch_findings(target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]) -> Iterator[Finding]:
    """Of an attention and a wide network whose outputs are added, one reads a norm and the other what that was given.

    A narrow network beside an attention may be an adapter, which reads what it likes.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    trace = run.trace
    calls = list(norm_calls(target, trace))
    for instance in instances:
        first, last = instance.scores[0].operation.index, instance.sums[-1].operation.index
        attended = trace.made_of({each.operation.outputs[0].storage for each in instance.sums})
        scored = {record.storage for each in instance.scores for record in (each.left, each.right)}
        for call in calls:
            read = (call.given, call.returned)
            if call.first.index > first or call.given in attended:
                continue
            products = [each for each in trace if each.name in PRODUCTS and _read(each, read) is not None]
            asking = [each for each in products if each.index < last and _makes(trace, each) & scored]
            beside = [each for each in products if each not in asking and _is_network(trace, each, attended)]
            one, other = ({_read(each, read) for each in some} for some in (asking, beside))
            if len(one) == len(other) == 1 and one != other:
                branches = ("attention", "feed-forward network")
                normed, plain = branches if one == {call.returned} else branches[::-1]
                message = (
                    f"of two branches side by side the {normed} reads what {call.path} returned, and the {plain} what "
                    "that was given"
                )
                yield Finding("violation", "norm-of-both-branches", "block", message, beside[0].location)
                return


def network_past_the_sum_findings(
    target: Any, run: TaggedRun, instances: Sequence[AttentionInstance]
) -> Iterator[Finding]:
    """A network with a norm of its own that reads what the block was given, when the sum with the attention is made.

    GPT-NeoX (Black et al. 2022, section 2.1.2) does so on purpose, and says so; x + attention + network may also be
    written as one sum. Where a line of its own makes the sum, and a later one the network, that is meant to read it.

    Args:
        target: what was called.
        run: the run.
        instances: its attentions.
    """
    trace, originals = run.trace, run.trace.originals()
    calls = list(norm_calls(target, trace))
    for instance in instances:
        attended = trace.made_of({each.operation.outputs[0].storage for each in instance.sums})
        total = next((each for each in trace if is_joined(each, attended)), None)
        if total is None or total.location is None:
            continue
        given = next(each.storage for each in total.inputs if each.storage not in attended)
        of_given = [each for each in calls if each.given == originals.get(given, given)]
        before = {each.path for each in of_given if each.last.index < instance.scores[0].operation.index}
        for call in of_given:
            if not before or call.path in before or call.first.index < total.index:
                continue
            read = [each for each in trace if each.name in PRODUCTS and _read(each, [call.returned]) is not None]
            joined = [_joining(trace, each, attended) for each in read if _is_network(trace, each, attended)]
            # What is added to something else first is no addend of this sum, as where the mean of two sums is taken.
            ends = [each for each in joined if each is not None and _is_next(each, total)]
            if ends and not _SIDE_BY_SIDE.search(_text_of(target)):
                message = (
                    f"the feed-forward network reads what {call.path} made of the input, and is added to the sum of "
                    "the input and the attention: it does not see what was attended to, and nothing says that both "
                    "stand side by side"
                )
                yield Finding("violation", "network-reads-the-sum", "block", message, ends[0].location)
                return


def _is_next(joining: Operation, total: Operation) -> bool:
    """Whether a sum has another sum for an addend, and stands in a line of its own."""
    is_addend = total.outputs[0].storage in {each.storage for each in joining.inputs}
    return is_addend and joining.location is not None and joining.location != total.location


def _text_of(target: Any) -> str:
    return "\n".join((code_of(target), documentation_of_file(target), comments_of_file(target)))


def _joining(trace: Trace, product: Operation, attended: set[int]) -> Operation | None:
    """The sum of what is made of a product with what is made of an attention; None where something is added before."""
    alone = _makes(trace, product) - attended
    for operation in trace.operations[product.index + 1 :]:
        taken = {each.storage for each in operation.inputs}
        if is_joined(operation, attended) and taken & alone:
            return operation
        if is_joined(operation, alone):
            return None
    return None


def _read(product: Operation, storages: Sequence[int]) -> int | None:
    """Which of two tensors a product multiplies by a matrix."""
    return next((each.storage for each in product.inputs if each.storage in storages), None)


def _makes(trace: Trace, product: Operation) -> set[int]:
    return trace.made_of([product.outputs[0].storage])


def _is_network(trace: Trace, product: Operation, attended: set[int]) -> bool:
    """Whether a product is the first of a wide network with an activation, whose output is added to an attention's."""
    width = product.inputs[-2].shape[-1]
    made = _makes(trace, product)
    alone, is_bent = made - attended, False
    if product.outputs[0].shape[-1] <= width or product.outputs[0].storage in attended:
        return False
    for operation in trace.operations[product.index + 1 :]:
        taken = {each.storage for each in operation.inputs}
        is_bent |= operation.name.rstrip("_") in ACTIVATIONS and bool(taken & alone)
        if is_joined(operation, attended) and taken & alone:
            return is_bent
    return False
