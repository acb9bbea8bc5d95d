"""Mixtures of experts: what an expert returns for a token is multiplied by the weight by which it was chosen.

Shazeer et al. 2017, "Outrageously Large Neural Networks" (arXiv:1701.06538), equation 1: the sum over experts of
G(x)_i E_i(x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.roles.influence import is_changed, record_invocation, selections
from regard.check.target import Invocation
from regard.check.target.preparation import modules_in
from regard.check.trace.operation import Operation, Trace

__all__ = ["routing_weight_findings"]

MOST = 2
"""Choices of experts that are asked: those of other layers are of the same line."""


def routing_weight_findings(invocation: Invocation, base: Trace) -> Iterator[Finding]:
    """Experts that are chosen, and that count, with weights of which some have no effect.

    Where the experts that are chosen second are left out, for the first ones are full, theirs have none either.

    Args:
        invocation: the call.
        base: its run.
    """
    held = selections(base)
    for chosen in [each for each in base if each.name == "topk" and _chooses_experts(invocation, each)][:MOST]:
        values, places = (each.data for each in chosen.outputs)
        count, experts = values.shape[-1], chosen.inputs[0].shape[-1]
        if count < 2 or count == experts or chosen.index not in held:
            continue
        weights, index = _last_weights(base, chosen)
        before = {each: numbers for each, numbers in held.items() if each <= index}
        scaled = [{**held, index: _scaled(weights, number)} for number in range(count)]
        unread = [number for number, frozen in enumerate(scaled) if _is_moved(invocation, base, frozen) is False]
        # Of two weights that sum to 1 the first tells the second: then their order makes no difference.
        turned = {**before, index: weights.flip(-1), chosen.index: places.flip(-1)}
        if not unread or len(unread) == count or not _is_moved(invocation, base, turned):
            continue
        for number in unread:
            others = {**before, index: weights, chosen.index: _other_experts(places, number, experts)}
            if _is_moved(invocation, base, others):
                message = (
                    f"each token goes to {count} experts, and the weights of those that are chosen as number {number} "
                    "(counted from 0) have no effect: these count by the weight of another"
                )
                yield Finding("violation", "experts-by-their-weights", "block", message, chosen.location)
                return


def _chooses_experts(invocation: Invocation, operation: Operation) -> bool:
    """Whether a list of as many modules stands beside it, or around it, as it takes the largest numbers of."""
    count = operation.inputs[0].shape[-1]
    for module in modules_in(invocation.target):
        named = dict(module.named_modules())
        path = operation.module
        while path in named:
            lists = [each for each in named[path].children() if isinstance(each, nn.ModuleList)]
            if any(len(each) == count for each in lists):
                return True
            if not path:
                break
            path = path.rpartition(".")[0]
    return False


def _last_weights(base: Trace, chosen: Operation) -> tuple[Tensor, int]:
    """The weights as they meet what experts return, often normalized, and the index of what made them."""
    found, index = chosen.outputs[0], chosen.index
    for operation in base.operations[chosen.index + 1 :]:
        if operation.module != chosen.module:
            continue
        takes = any(each.storage == found.storage and each.shape == found.shape for each in operation.inputs)
        made = operation.outputs[0] if operation.outputs else None
        if takes and made is not None and made.shape == found.shape and made.data.is_floating_point():
            found, index = made, operation.index
    return found.data, index


def _scaled(weights: Tensor, number: int) -> Tensor:
    scaled = weights.clone()
    scaled[..., number] = 3 * scaled[..., number] + 0.5
    return scaled


def _other_experts(places: Tensor, number: int, experts: int) -> Tensor:
    """The choice with an expert that was not chosen in one place of it."""
    free = torch.ones(*places.shape[:-1], experts, dtype=torch.uint8).scatter(-1, places, 0)
    others = places.clone()
    others[..., number] = free.argmax(-1)
    return others


def _is_moved(invocation: Invocation, base: Trace, frozen: Mapping[int, Tensor]) -> bool | None:
    """Whether a run with other numbers in it returns something else; None where it raises."""
    run = record_invocation(invocation, frozen=frozen)
    if run.error or len(run.outputs) != len(base.outputs):
        return None
    pairs = zip(base.outputs, run.outputs, strict=True)
    return any(is_changed(one.data, other.data) for one, other in pairs)
