"""Matrices that a function is handed over: each part of them has an effect on what is returned."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.argument import MATRICES
from regard.check.target.signature import readings

__all__ = ["argument_matrix_findings"]

MOVED = 1e-9
"""The smallest change of an output that is one."""
PARTS = {1: [""], 3: ["the first third of ", "the second third of ", "the last third of "]}
"""What a matrix for queries, keys and values together is made of, and any other."""


def argument_matrix_findings(invocation: Invocation, handed_out: Collection[int]) -> Iterator[Finding]:
    """A matrix, or the third of one for queries, keys and values, that changes nothing.

    Args:
        invocation: a call of a function.
        handed_out: the numbers of the outputs that are keys and values, for another call.
    """
    if isinstance(invocation.target, nn.Module):
        return
    matrices = {each.name: each.role for each in readings(invocation.target)[0] if each.role in MATRICES}
    try:
        before = invocation.outputs(invocation.run())
    except Failed:
        return
    for name, role in matrices.items():
        value = invocation.arguments.get(name)
        if not isinstance(value, Tensor) or value.ndim != 2 or not value.is_floating_point():
            continue
        axis = 0 if value.shape[0] == 3 * value.shape[1] else 1
        count = 3 if role == "w_qkv" and value.shape[axis] == 3 * value.shape[1 - axis] else 1
        for place, which in enumerate(PARTS[count]):
            moved = value.clone()
            part = moved.chunk(count, axis)[place]
            part += torch.linspace(0.5, 1.5, part.numel(), dtype=value.dtype).view_as(part)
            try:
                after = invocation.outputs(invocation.run({**invocation.arguments, name: moved}))
            except Failed:
                return
            pairs = zip(before, after, strict=False)
            same = [one.shape == two.shape and bool(((one - two).abs() <= MOVED).all()) for one, two in pairs]
            if all(is_same for number, is_same in enumerate(same) if number not in handed_out):
                yield Finding("violation", "projection-used", "projections", f"{which}{name} has no effect")
                return
