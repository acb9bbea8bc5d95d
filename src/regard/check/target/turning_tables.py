"""Rotary tables that turn channels, and do not stretch them: which order of the angles a call means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.check.target.errors import Failed
from regard.check.target.sizes import Sizes

__all__ = ["first_output", "with_turning_tables"]


def with_turning_tables(plan: Any, target: Any, sizes: Sizes) -> Any:
    """The plan with rotary tables that repeat each angle for the two channels that the target turns together.

    Attention with rotary positions gives the same where every token stands further along. With tables of the other
    order, channels are not rotated but stretched, and that is what was handed over, not what the target does. Angles
    are as many numbers as cosines and sines side by side, as which code may view them.
    """
    if "rope" not in plan.choices:
        return plan
    tables = [each.name for each in plan.arguments if plan.choices.get(f"argument {each.name}") == "angles"]
    stacked = {f"argument {name}": "stacked" for name in tables}
    orders = dict.fromkeys((plan.choices.get("pairs", ""), "", "halves", "neighbours", "halves of two parts"))
    changes = [{"pairs": each} for each in orders]
    for change in [*changes, *([stacked] if stacked else [])]:
        tried = replace(plan, choices={**plan.choices, **change})
        later = replace(plan, choices={**tried.choices, "first": "3"})
        try:
            here, there = (first_output(each, target, sizes) for each in (tried, later))
        except Failed:
            continue
        if here.shape == there.shape and bool(torch.isclose(here, there, rtol=1e-6, atol=1e-8).all()):
            return tried
    return plan


def first_output(plan: Any, target: Any, sizes: Sizes) -> Tensor:
    """The first tensor that a call returns; an empty one where it returns none."""
    invocation = plan.invocation(target, sizes)
    outputs = invocation.outputs(invocation.run())
    return outputs[0] if outputs else torch.empty(0)
