"""Blocks whose attention and feed-forward network stand side by side: both read what one norm returned, or both not.

Wang and Komatsuzaki 2021, "GPT-J-6B"; Chowdhery et al. 2022, "PaLM" (arXiv:2204.02311), section 2:
y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from regard.check.properties.finding import Finding
from regard.check.properties.modules.norm_calls import norm_calls
from regard.check.properties.modules.residuals import ACTIVATIONS, is_joined
from regard.check.roles.instances import AttentionInstance, TaggedRun
from regard.check.trace.operation import Operation, Trace

__all__ = ["parallel_branch_findings"]

PRODUCTS = frozenset({"mm", "addmm"})


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
