"""Weights that are mixed of several softmaxes: a mask of padding hides keys in each of them."""

from __future__ import annotations

import itertools

from torch import Tensor

from regard.check.properties.finding import Evidence, Finding
from regard.check.properties.masks.drawn import padding_mask
from regard.check.properties.saturation import ZERO_WEIGHT
from regard.check.roles.influence import record_invocation
from regard.check.roles.instances import SOFTMAXES
from regard.check.target import Invocation
from regard.check.target.mask_values import MASK_FORMS, write_mask
from regard.check.trace.operation import Trace, reached

__all__ = ["unmasked_part"]

SHAPES = ("bk", "b1k", "b11k")
"""Axes of a mask of keys: samples, keys."""
SUMS = 1e-6
"""How far the weights of a softmax are from 1 in all."""


def unmasked_part(invocation: Invocation, evidence: Evidence) -> Finding | None:
    """A softmax that gives hidden keys a share, beside one that gives them none, where both are mixed into weights.

    As of the distances of atoms, whose softmax is the nearest ones': a key of padding is as near as its number says.

    Args:
        invocation: a call without a mask.
        evidence: of an attention whose weights are a part softmax, and a part something else.
    """
    table = evidence.base
    samples, _, queries, keys = table.dense(table.product).shape
    own = {each.location for each in table.instance.softmaxes}
    for name, shape, form in itertools.product(invocation.masks, SHAPES, MASK_FORMS):
        if invocation.arguments.get(name) is not None:
            continue
        pattern = padding_mask([samples, *[1] * (len(shape) - 2), keys], "end")
        run = record_invocation(invocation, {**invocation.arguments, name: write_mask(pattern, form)}, lines=True)
        hidden = ~pattern.reshape(samples, keys)
        if run.error or not bool(hidden.any()):
            continue
        shares = {
            each.index: each.outputs[0].data.reshape(samples, -1, keys).abs().amax(1)[hidden]
            for each in run
            if each.name in SOFTMAXES and _is_of_pairs(each.outputs[0].shape, samples, queries, keys)
        }
        masked = [index for index, share in shares.items() if run.operations[index].location in own]
        if not masked or any(bool((shares[index] > ZERO_WEIGHT).any()) for index in masked):
            continue
        for index in shares:
            other = run.operations[index]
            if other.location in own or not bool((shares[index] > ZERO_WEIGHT).all()):
                continue
            share = _share_in_a_sum(run, index, masked, hidden)
            if share > ZERO_WEIGHT:
                message = (
                    f"{name} hides keys from the softmax of the scores, and another one, which is mixed into the "
                    f"weights, leaves each of them {share:.2g} of some query"
                )
                return Finding("violation", "mask-of-all-parts", "mask", message, other.location)
        return None
    return None


def _is_of_pairs(shape: tuple[int, ...], samples: int, queries: int, keys: int) -> bool:
    return len(shape) > 2 and shape[0] == samples and tuple(shape[-2:]) == (queries, keys)


def _share_in_a_sum(run: Trace, one: int, others: list[int], hidden: Tensor) -> float:
    """The largest share of a hidden key in what a sum takes of one softmax, where it is of the masked ones as well.

    Args:
        run: with a mask.
        one: the index of a softmax, of which something may be masked after it.
        others: those that the mask reaches.
        hidden: (samples, keys).
    """
    sums = [each for each in run if each.is_addition and each.inputs[0].shape == each.inputs[1].shape]
    alone = reached({run.operations[one].outputs[0].storage}, [each for each in run if not each.is_addition])
    mixed = run.made_of([run.operations[each].outputs[0].storage for each in others])
    samples, keys = hidden.shape
    shares = [
        float(part.data.reshape(samples, -1, keys).abs().amax(1)[hidden].min())
        for each in sums
        for part in each.inputs
        if part.storage in alone - mixed and part.shape[0] == samples and part.shape[-1] == keys
        if each.outputs[0].storage in mixed
    ]
    return max(shares, default=0.0)
