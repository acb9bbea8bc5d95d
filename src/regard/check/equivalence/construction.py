"""The modules that are compared: copies in float64 with parameters drawn at random, both of the same sizes."""

from __future__ import annotations

import torch
from torch import nn

from regard.check.equivalence.call_search import call_plan
from regard.check.equivalence.operations import Float64Mode
from regard.check.equivalence.projections import read_projections
from regard.check.search.layouts import Sizes
from regard.check.search.parameters import refuse_lazy
from regard.check.search.subject import Subject
from regard.check.target.preparation import copied, in_float64, redraw
from regard.errors import InputError

__all__ = ["built_modules"]

SIZES = (
    Sizes(batch=2, heads=4, queries=6, keys=6, d_key=6, d_value=6),
    Sizes(batch=2, heads=3, queries=6, keys=6, d_key=10, d_value=10),
    Sizes(batch=2, heads=8, queries=6, keys=6, d_key=8, d_value=8),
    Sizes(batch=2, heads=1, queries=6, keys=6, d_key=10, d_value=10),
)
"""Sizes to build both of, until both can be built."""


def built_modules(a: Subject, b: Subject) -> list[nn.Module | None]:
    """Modules of float64 with random parameters, of the same sizes; None for functions."""
    if a.build is None and b.build is None:
        return [_prepared(each.module, number) for number, each in enumerate((a, b))]
    tried: tuple[Sizes, ...] = SIZES
    made = next((each.module for each in (a, b) if each.module is not None), None)
    if made is not None:
        tried = _sizes_of(a if a.module is not None else b, made)
    failed: InputError | None = None
    for sizes in tried:
        modules: list[nn.Module | None] = []
        said: list[list[str]] = []
        try:
            for each in (a, b):
                if each.build is None:
                    modules.append(each.module)
                    said.append([])
                    continue
                torch.manual_seed(0)
                with Float64Mode():  # type: ignore[no-untyped-call]
                    module, assumed = each.build(sizes)
                modules.append(module)
                said.append(assumed)
        except InputError as error:
            failed = failed or error
            continue
        for each, assumed in zip((a, b), said, strict=True):
            each.assumptions += assumed
        return [_prepared(module, number) for number, module in enumerate(modules)]
    assert failed is not None
    raise failed


def _sizes_of(subject: Subject, module: nn.Module) -> tuple[Sizes, ...]:
    """The sizes of a module that is made already, for the other one to be built of."""
    prepared = _prepared(module, 0)
    found = read_projections(call_plan(subject, prepared))
    width = found.q.weight.shape[1]
    return (Sizes(batch=2, heads=found.heads, queries=6, keys=6, d_key=width, d_value=found.v.weight.shape[1]),)


def _prepared(module: nn.Module | None, seed: int) -> nn.Module | None:
    if module is None:
        return None
    module = in_float64(copied(module)).eval()
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.dtype == torch.complex64:  # rotary angles, which double() passes by
                setattr(part, name, buffer.to(torch.complex128))
    refuse_lazy(module)
    redraw(module, seed + 1)
    return module
