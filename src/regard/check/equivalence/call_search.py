"""The way in which an implementation is called: the first that keeps samples apart, and how it is told to be causal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.check.equivalence.calls import CallPlan, CannotCompareError, CausalMask, random_inputs
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.mask_formats import FORMS
from regard.check.target.calls_of_sizes import OF_PLACES, FoundCall, with_optional
from regard.check.target.errors import NotCallable
from regard.check.target.invocation import calls_of_layouts
from regard.check.target.sizes import Sizes
from regard.check.target.targets import targets_of

__all__ = ["call_plan"]

MAX_WIDTHS = 4
MASK_SHAPES = ("qk", "1qk", "bqk", "11qk", "b1qk")
CHANGE = 1e-12
"""What moves less than this part of the largest number does not move."""


def call_plan(name: str, implementation: Any, sizes: Sizes | None, settings: UserSettings) -> CallPlan:
    """The way in which a function or a module is called: the first that runs, and keeps samples apart.

    Args:
        name: of it.
        implementation: what is called; it is copied, and the parameters of the copy are redrawn.
        sizes: that it was constructed of; None where it was handed over as it is.
        settings: PyTorch's settings during its calls.

    Raises:
        CannotCompareError: none does.
    """
    failed: CannotCompareError | None = None
    target = next(targets_of(implementation, {}, settings, []))
    module = target.call if isinstance(target.call, nn.Module) else None
    several = [target.sizes if sizes is None else sizes]
    several += [replace(several[0], given=(("d_model", each),)) for each in _widths(module)]
    for each in several:
        try:
            for found in calls_of_layouts(replace(target, sizes=each), settings):
                for one in _with_places(found):
                    try:
                        plan = CallPlan(name, one, module)
                        if _keeps_apart(plan):
                            return _with_mask(plan)
                    except CannotCompareError as error:
                        failed = failed or error
        except NotCallable as error:
            failed = failed or CannotCompareError(f"{name} could not be called: {error}")
    raise failed or CannotCompareError(f"no way to call {name} was found: its samples mix in all of them")


def _widths(module: nn.Module | None) -> list[int]:
    """Numbers that may be the width of the tokens of a module."""
    weights = [each for each in module.parameters() if each.ndim > 1] if module is not None else []
    sizes = [size for each in weights[:1] for size in reversed(each.shape)]
    return list(dict.fromkeys(sizes + [size for each in weights for size in each.shape]))[:MAX_WIDTHS]


def _with_places(found: FoundCall) -> Iterator[FoundCall]:
    """The call with tables of positions that it could do without, and as it is."""
    plan = with_optional(found, OF_PLACES)
    if plan is not None:
        yield replace(found, plan=plan)
    yield found


def _moved(before: Tensor, after: Tensor) -> Tensor:
    return (after - before).abs() > CHANGE * max(1.0, float(before.abs().max()))


def _keeps_apart(plan: CallPlan) -> bool:
    """Whether a token of one sample has an effect, and on this sample alone; of q, k and v: each where it belongs."""
    inputs = random_inputs(plan, 1)
    before = plan(inputs)
    if not bool(before.isfinite().all()):
        return False
    if inputs.x is not None:
        x = inputs.x.clone()
        x[0, 1] = x[0, 1].flip(-1) + 0.5  # a constant alone may be normed away
        moved = _moved(before, plan(replace(inputs, x=x)))
        others = moved.any(-1)[0]
        others[1] = False
        return bool(others.any()) and not bool(moved[1:].any())
    assert inputs.q is not None
    assert inputs.v is not None
    q, v = inputs.q.clone(), inputs.v.clone()
    q[0, 0, 1] += 1.0
    v[0, 0, 0, 2] += 1.0
    by_q, by_v = _moved(before, plan(replace(inputs, q=q))), _moved(before, plan(replace(inputs, v=v)))
    mine, channel = by_q[0, 0, 1].any(), by_v[0, 0, :, 2].any()
    by_q[0, 0, 1] = False
    by_v[0, 0, :, 2] = False
    return bool(mine) and bool(channel) and not bool(by_q.any()) and not bool(by_v.any())


def _with_mask(plan: CallPlan) -> CallPlan:
    """The same with what is known of causality."""
    if _causal(plan, causal=False):
        return replace(plan, is_causal=True)
    arguments = plan.found.plan.arguments
    flags = [CausalMask(each.name) for each in arguments if each.role == "causal"]
    masks = [each.name for each in arguments if each.role in ("mask", "bias")]
    for mask in flags + [CausalMask(*each) for each in itertools.product(masks, FORMS, MASK_SHAPES)]:
        marked = replace(plan, mask=mask)
        try:
            if _causal(marked, causal=True):
                return marked
        except CannotCompareError:
            continue
    return plan


def _causal(plan: CallPlan, *, causal: bool) -> bool:
    """Whether, by influence, a token sees itself and those before it, and none after it."""
    inputs = random_inputs(plan, 2)
    name = "x" if inputs.x is not None else "v"
    given: Tensor = getattr(inputs, name)
    if inputs.x is None:  # as many keys as queries
        assert inputs.q is not None
        tokens = inputs.q.shape[2]
        assert inputs.k is not None
        inputs = replace(inputs, k=inputs.k[:, :, :tokens], v=given[:, :, :tokens])
        given = getattr(inputs, name)
    before = plan(inputs, causal=causal)
    if not bool(before.isfinite().all()):
        return False
    tokens = given.shape[-2]
    for at in range(tokens):
        changed = given.clone()
        changed[..., at, :] = changed[..., at, :].flip(-1) + 0.5
        other = replace(inputs, x=changed) if name == "x" else replace(inputs, v=changed)
        moved = _moved(before, plan(other, causal=causal)).any(-1)
        if moved[..., :at].any() or (at == 0 and not moved[..., 1:].any()):
            return False
    return True
