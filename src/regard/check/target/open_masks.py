"""Masks that a call has to be given, in the form in which they let everything through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch

from regard.check.target.argument import Argument
from regard.check.target.errors import Failed
from regard.check.target.influence import depends
from regard.check.target.mask_values import MASK_FORMS, TRIED_FORMS
from regard.check.target.running import Invocation, Stream
from regard.check.target.sizes import Sizes

__all__ = ["let_through", "with_open_masks"]

MOST_APART = 3
"""Masks that are tried in forms of their own."""


@runtime_checkable
class _CallPlan(Protocol):
    """A way to call a target, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    arguments: list[Argument]
    choices: dict[str, str]

    def invocation(self, target: Any, sizes: Sizes) -> Invocation:
        """The call."""


CallPlan = TypeVar("CallPlan", bound=_CallPlan)


def with_open_masks(plan: CallPlan, target: Any, sizes: Sizes) -> CallPlan:
    """The plan with the form of each required mask that lets everything through.

    A key that the form blocks must have no influence on the other queries; a form that was read the other way round
    lets that key alone through. A number that is added where the code hides by another form may still make a key
    lighter, so that the form is taken in which a blocked key reaches least.
    """
    plan = let_through(plan, target, sizes)
    for argument in plan.arguments:
        name = plan.choices.get(f"argument {argument.name}", "none")
        form, _, shape = name.rpartition(" ")
        keys = shape.find("k") - len(shape)
        if form not in MASK_FORMS:
            continue
        least, best = 1.0, plan
        for other in (form, *(each for each in MASK_FORMS if each != form)):
            tried = replace(plan, choices={**plan.choices, f"argument {argument.name}": f"{other} {shape}"})
            reach = _reach_of_blocked(tried, target, sizes, argument.name, (other, keys))
            if reach < least:
                least, best = reach, tried
            if reach <= 1 / sizes.tokens:  # its own query's output, which is of the same token
                break
        plan = best
    return plan


def let_through(plan: CallPlan, target: Any, sizes: Sizes) -> CallPlan:
    """The plan, or where its masks let nothing through the first in which they have other forms, and do.

    All the same form, as one author writes them; or each its own, as where one hides keys and one keeps tokens.
    """
    parts = {each: each.rpartition(" ") for each in plan.choices.values()}
    masks = {name: parts[each][2] for name, each in plan.choices.items() if parts[each][0] in MASK_FORMS}
    if not masks or not _is_closed(plan.invocation(target, sizes)):
        return plan
    apart = itertools.product(TRIED_FORMS, repeat=len(masks)) if len(masks) <= MOST_APART else ()
    for forms in (*((form,) * len(masks) for form in MASK_FORMS), *(each for each in apart if len({*each}) > 1)):
        several = zip(masks.items(), forms, strict=True)
        tried = replace(plan, choices=plan.choices | {name: f"{form} {shape}" for (name, shape), form in several})
        if not _is_closed(tried.invocation(target, sizes)):
            return tried
    return plan


def _is_closed(invocation: Invocation) -> bool:
    """Whether a call raises, returns NaN or is moved by no token, in the first of what it returns."""
    streams = [each for each in invocation.streams if len(each.token_axes) == 1 and invocation.tokens_of(each) > 1]
    try:
        returned = invocation.outputs(invocation.run(invocation.arguments))
        if any(bool(each.isnan().any()) for each in returned):
            return True
        moved = [depends(invocation, each.argument, each.token_axes[0], 1, invocation.arguments) for each in streams]
    except Failed:
        return True
    return bool(moved) and not any(bool(one.any()) for each in moved for one in each[:1])


def _reach_of_blocked(plan: _CallPlan, target: Any, sizes: Sizes, mask: str, written: tuple[str, int]) -> float:
    """What share of the numbers that a key has influence on it still has influence on where a mask blocks it.

    Of several sequences whose tokens may be the keys, it is that of the one that the mask hides most of.

    Args:
        plan: the call.
        target: what is called.
        sizes: of the call.
        mask: the argument.
        written: in which form, and with the keys along which of its axes.
    """
    form, axis_of_keys = written
    invocation = plan.invocation(target, sizes)
    opened = invocation.arguments.get(mask)
    if not isinstance(opened, torch.Tensor) or not opened.ndim:
        return 1.0
    streams = [
        each
        for role in ("k", "context", "x", "ids")
        for each in invocation.streams
        if each.role == role and len(each.token_axes) == 1
    ]
    count = opened.shape[axis_of_keys]
    shapes = [(each, invocation.tokens_of(each)) for each in streams]
    streams = [each for each, tokens in shapes if tokens == count] or streams[:1]
    value = {"allowed": False, "added": -torch.inf, "blocked": True, "keep": 0.0, "keep, whole": 0}.get(form, 1)
    given, last = (
        {**invocation.arguments, mask: opened.index_fill(axis_of_keys, torch.tensor([key]), value)}
        for key in (1, count - 1)
    )
    if _is_made_nan(invocation, last):
        return 1.0  # what was multiplied by 0, as by a mask of later keys, is no number that is added
    return min((_share(invocation, each, given) for each in streams), default=1.0)


def _is_made_nan(invocation: Invocation, given: Mapping[str, Any]) -> bool:
    """Whether other arguments make NaN of what is returned where it was none."""
    try:
        before, after = (invocation.outputs(invocation.run(each)) for each in (invocation.arguments, given))
    except Failed:
        return False
    return any(bool(two.isnan().any()) > bool(one.isnan().any()) for one, two in zip(before, after, strict=False))


def _share(invocation: Invocation, stream: Stream, given: Mapping[str, Any]) -> float:
    """What share of its influence the second token of a sequence has left with other arguments."""
    name, axis = stream.argument, stream.token_axes[0]
    try:
        hidden = depends(invocation, name, axis, 1, given)
        seen = depends(invocation, name, axis, 2, given)
        unmasked = depends(invocation, name, axis, 1, invocation.arguments)
    except Failed:
        return 1.0
    # Against the same key as well: one whose weight happens to be nearly 0 reaches less, whatever the mask says.
    shares = [
        int(one.sum()) / most
        for one, two, three in zip(hidden, seen, unmasked, strict=False)
        if (most := min(int(two.sum()), int(three.sum())))
    ]
    return min(shares, default=1.0)
