"""The way in which an implementation is called, found by trying: which layout, width and mask it takes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from regard.check.equivalence.calls import (
    COMPLEX_TURNS,
    POSITIONS,
    CallPlan,
    CannotCompareError,
    CausalMask,
    argument_roles,
    random_inputs,
)
from regard.check.search.layouts import FUNCTION_WAYS
from regard.check.search.mask_formats import FORMS
from regard.check.search.subject import Subject

__all__ = ["call_plan"]

MASK_SHAPES = ("qk", "1qk", "bqk", "11qk", "b1qk")
ROTATED = ("rotary_ndims", "rotary_dim", "rope_dim", "head_dim", "attention_head_size", "head_size", "d_head", "d_k")
"""Attributes that tell how many channels of a head are rotated, the likeliest first."""
WIDTHS = ("embed_dim", "d_model", "hidden_size", "dim", "n_embd", "width")
CHANGE = 1e-12
"""What moves less than this part of the largest number does not move."""


def call_plan(subject: Subject, module: nn.Module | None) -> CallPlan:
    """The way in which a function or a module of float64 is called: the first that runs, and keeps samples apart.

    Raises:
        CannotCompareError: none does.
    """
    failed: CannotCompareError | None = None
    for plan in _plans(subject, module):
        try:
            if not _keeps_apart(plan):
                continue
            return _with_mask(plan)
        except CannotCompareError as error:
            failed = failed or error
    raise failed or CannotCompareError(f"no way to call {subject.name} was found: its samples mix in all of them")


def _plans(subject: Subject, module: nn.Module | None) -> Iterator[CallPlan]:
    if module is None:
        for way in FUNCTION_WAYS:
            yield CallPlan(subject, None, way.layout)
        return
    for width, layout in itertools.product(_widths(module), ("btd", "tbd", "td")):
        plan = CallPlan(subject, module, layout, width)
        roles = set(argument_roles(subject).values())
        turned = roles & {"rope", "cos", "sin"} or any(name in COMPLEX_TURNS for name in subject.called)
        plans = [replace(plan, rotated=each) for each in _rotated(module, width)] if turned else [plan]
        optional = {name for name in subject.called if name in POSITIONS} - set(_required(subject))
        for each in plans:
            yield each
            if optional:
                yield replace(each, gives_positions=True)
            yield from (
                replace(each, open_mask=CausalMask(name, form, shape))
                for name in _masks(subject, required=True)
                for form in FORMS[:4]
                for shape in MASK_SHAPES
            )


def _owners(module: nn.Module) -> Iterator[Any]:
    yield module
    config = getattr(module, "config", None)
    if config is not None:
        yield config


def _numbers(module: nn.Module, names: tuple[str, ...]) -> list[int]:
    values = [getattr(owner, name, None) for name in names for owner in _owners(module)]
    return [value for value in values if type(value) is int and value > 0]


def _widths(module: nn.Module) -> list[int]:
    """Numbers that may be the width of its input."""
    weights = [each for each in module.parameters() if each.ndim >= 2]
    sizes = [size for each in weights[:1] for size in reversed(each.shape)]
    sizes += [size for each in weights for size in each.shape]
    return list(dict.fromkeys(_numbers(module, WIDTHS) + sizes))[:8]


def _rotated(module: nn.Module, width: int) -> list[int]:
    heads = _numbers(module, ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads"))
    divisors = [each for each in range(width, 1, -1) if width % each == 0 and each % 2 == 0]
    return list(dict.fromkeys(_numbers(module, ROTATED) + [width // each for each in heads] + divisors))


def _masks(subject: Subject, *, required: bool = False) -> list[str]:
    empty = inspect.Parameter.empty
    return [
        name
        for name, means in argument_roles(subject).items()
        if means in ("mask", "bias") and (not required or subject.called[name].default is empty)
    ]


def _required(subject: Subject) -> list[str]:
    return [name for name, each in subject.called.items() if each.default is inspect.Parameter.empty]


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
    flags = [CausalMask(name) for name, means in argument_roles(plan.subject).items() if means == "causal"]
    written = [
        CausalMask(name, form, shape)
        for name in _masks(plan.subject)
        for form, shape in itertools.product(FORMS, MASK_SHAPES)
    ]
    for mask in flags + written:
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
        moved = _moved(before, plan(replace(inputs, **{name: changed}), causal=causal)).any(-1)
        if moved[..., :at].any() or (at == 0 and not moved[..., 1:].any()):
            return False
    return True
