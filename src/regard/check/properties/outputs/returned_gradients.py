"""Gradients that a function returns beside its output, of the gradient of that output: they are its slopes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.check.properties.code import line_of
from regard.check.properties.finding import Finding
from regard.check.target import Failed, Invocation
from regard.check.target.argument import is_output_gradient

__all__ = ["returned_gradient_findings"]

STEP = 1e-5
"""Of a slope that is measured."""
SAME = 1e-6
"""Of the largest of two slopes: more are two."""
DIRECTIONS = 3
"""Along which slopes are measured."""


def returned_gradient_findings(invocation: Invocation) -> Iterator[Finding]:
    """A gradient of a sequence that is not the slope of the output, where that of another sequence is.

    Args:
        invocation: a call of a function that is given the gradient of its output.
    """
    told = [name for name in invocation.arguments if is_output_gradient(name)]
    if len(told) != 1:
        return
    invocation = replace(invocation, completion=None)
    try:
        output, *others = invocation.outputs(invocation.run())
        if output.shape != invocation.arguments[told[0]].shape:
            return
        several = {each.argument: _slopes(invocation, each.argument, told[0]) for each in invocation.streams}
    except Failed:
        return
    wrong, is_some = dict[str, Tensor](), False
    for name, (directions, slopes) in several.items():
        alike = [each.double() for each in others if each.shape == invocation.arguments[name].shape]
        found = [(each * directions).flatten(1).sum(1) for each in alike]
        if any(bool(((each - slopes).abs() <= SAME * slopes.abs().max()).all()) for each in found):
            is_some = True
        elif found:
            same = [each for each in several if invocation.arguments[each].shape == directions.shape[1:]]
            wrong[name] = found[min(same.index(name), len(found) - 1)] / slopes
    if not is_some or not wrong:
        return
    shares = torch.cat([*wrong.values()])
    is_one = bool(((shares - shares[0]).abs() <= SAME * shares[0].abs()).all())
    of_what = f"{float(shares[0]):.4g} times its slope" if is_one else "not its slope"
    message = (
        f"the gradient of {' and of '.join(wrong)} that it returns is {of_what}: what the output changes by where "
        f"{next(iter(wrong))} changes a little, times {told[0]}"
    )
    yield Finding("violation", "gradients-as-slopes", "output", message, line_of(invocation.target))


def _slopes(invocation: Invocation, name: str, told: str) -> tuple[Tensor, Tensor]:
    """Some directions of an argument, and the slope along each of the sum of the output times its gradient.

    Raises:
        Failed: the call raises.
    """
    given, weights = invocation.arguments[name].double(), invocation.arguments[told].double()
    directions = torch.randn(DIRECTIONS, *given.shape, generator=torch.Generator().manual_seed(0), dtype=given.dtype)
    slopes = []
    for each in directions:
        sides = (
            invocation.outputs(invocation.run({**invocation.arguments, name: given + sign * STEP * each}))[0].double()
            for sign in (1, -1)
        )
        slopes.append(((next(sides) - next(sides)) * weights).sum() / (2 * STEP))
    return directions, torch.stack(slopes)
