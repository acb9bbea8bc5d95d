"""Gradients: inputs and parameters that none reaches, though the output has a slope there."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _contextlib

from regard.check.behaviour.calls import joined, output_tensor
from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.search.calls import Failed, ProbeCall
from regard.check.target.preparation import are_written, drawn_like, kept_tensors

__all__ = ["gradients_missing"]

IN_NUMPY = "it computes in numpy, which has no gradients: no model learns through it"
BY_DECORATOR = "no gradient reaches anything, as the decorator of the whole says: no model learns through it"
WORDS = {"q": "queries", "k": "keys", "v": "values", "context": "the context"}
STEP = 1e-5
"""Of a slope that is measured."""
FLAT = 1e-6
"""A slope below this is none."""
NO_GRADIENT = 1e-13
"""A gradient below this is none."""
SMOOTH = 1e-2
"""Slopes of two steps differ by less, relative to the slope, where the output is smooth."""


def gradients_missing(examination: Examination) -> None:
    """Gradients that are zero where the output has a slope."""
    if not examination.is_explained or examination.has_mistake or examination.diagnosis.is_random:
        return
    explained = next(examination.explained_calls(), None)
    if explained is None:
        return
    call, case, roles = explained.call, explained.observed.case, examination.roles
    module = call.copied_module()
    given = call.arguments(case)
    inputs = {
        name: value
        for name, value in given.items()
        if isinstance(value, Tensor) and value.is_floating_point() and roles.get(name) not in ("mask", "padding")
    }
    parameters = {} if module is None else {name: p for name, p in module.named_parameters() if p.requires_grad}
    leaves = {**inputs, **parameters}
    if set(inputs) & set(parameters):
        return
    for leaf in leaves.values():
        leaf.requires_grad_()

    kept = [] if module is None else kept_tensors(module)

    def output() -> Tensor:  # a copy is handed over: what is written in place is another's fault
        result = call.result_of(module, {n: v.clone() if n in inputs else v for n, v in given.items()})
        return output_tensor(call, case, result)

    with without_dropout(), torch.enable_grad():
        try:
            first = output()
        except Failed as error:
            if "call numpy()" not in str(error):  # PyTorch refuses a tensor with a gradient
                raise
            examination.add_note(IN_NUMPY)
            return
        inner = _decorated(call)
        if inner is not None and not first.requires_grad:
            examination.add_note(BY_DECORATOR)
            if module is None:
                call = replace(call, subject=replace(call.subject, function=inner))
            else:
                module.forward = types.MethodType(inner, module)
            first = output()
        toward = drawn_like(first, seed=3)
        gradients: dict[str, Tensor | None] = dict.fromkeys(leaves)
        if first.requires_grad:
            found = torch.autograd.grad((first * toward).sum(), list(leaves.values()), allow_unused=True)
            gradients = dict(zip(leaves, found, strict=True))
    missed = []
    for name, leaf in leaves.items():
        gradient = gradients[name]
        zero = torch.ones_like(leaf, dtype=torch.bool) if gradient is None else gradient.abs() < NO_GRADIENT
        if bool(zero.any()) and _has_slope(output, leaf, zero, toward):
            missed.append(WORDS.get(roles.get(name, ""), name) if name in inputs else f"{name}{_rows(zero)}")
    if missed and module is None and _uses_numpy(output):
        examination.add_note(IN_NUMPY)
    elif missed and are_written(kept):
        return  # keys and values in a cache: it is meant for inference
    elif missed:
        examination.add_mistake("detached", what=joined(missed))


def _decorated(call: ProbeCall) -> Callable[..., Any] | None:
    """What a decorator of PyTorch's, as that of `torch.no_grad`, was set on as a whole; None where none was."""
    function: Any = call.subject.function if call.module is None else type(call.module).forward
    wrapped = getattr(function, "__wrapped__", None)
    is_torch_s = getattr(getattr(function, "__code__", None), "co_filename", "") == _contextlib.__file__
    return wrapped if is_torch_s and callable(wrapped) else None


class _ArrayWatch(TorchFunctionMode):
    """Notices tensors that become arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.used = self.used or getattr(func, "__name__", "") in ("numpy", "__array__")
        return func(*args, **(kwargs or {}))


def _uses_numpy(output: Callable[[], Tensor]) -> bool:
    watch = _ArrayWatch()
    with without_dropout(), watch:
        output()
    return watch.used


def _has_slope(output: Callable[[], Tensor], leaf: Tensor, where: Tensor, toward: Tensor) -> bool:
    """Whether the output moves with some numbers of a tensor, and smoothly: a tenth of the step has the same slope."""
    direction = drawn_like(leaf, seed=4).to(leaf.dtype)
    direction, before = direction * where, leaf.detach().clone()
    slopes = []
    with without_dropout(), torch.no_grad():
        for step in (STEP, STEP * 0.1):
            ends = []
            for sign in (1.0, -1.0):
                leaf.copy_(before + sign * step * direction)
                ends.append((output() * toward).sum().item())
                leaf.copy_(before)
            slopes.append((ends[0] - ends[1]) / (2 * step))
    far, near = slopes
    return abs(far) > FLAT * toward.numel() ** 0.5 and abs(far - near) < SMOOTH * abs(far)


def _rows(where: Tensor) -> str:
    """The rows that are meant, if not all of them."""
    if bool(where.all()):
        return ""
    if where.ndim == 1:
        rows = where
    elif bool((where.flatten(1).all(1) == where.flatten(1).any(1)).all()):
        rows = where.flatten(1).all(1)
    else:
        return " (in part)"
    at = rows.nonzero().flatten()
    first, last = int(at[0]), int(at[-1])
    return f"[{first}:{last + 1}]" if len(at) == last + 1 - first else " (in part)"
