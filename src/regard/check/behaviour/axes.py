"""The axes of a batch: samples that are mixed, and axes that are counted from the front."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.behaviour.calls import output_gap, with_other_numbers, with_tensors
from regard.check.behaviour.dropout import is_repeatable, without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.recipes.case import Case
from regard.check.search.calls import Failed, ProbeCall
from regard.check.search.cases import drawn
from regard.check.search.layouts import Sizes, Way
from regard.check.target.preparation import in_float64, in_mode
from regard.check.target.seeds import seeded

__all__ = ["axes_from_the_front", "samples_mixed"]

WIDEST = 64
"""A batch of n x n x n is tried up to this n."""
WIDTH_OF_FUNCTIONS = 4
WIDTH_OF_ONE_HEAD = 12
SEED = 70


def axes_from_the_front(examination: Examination) -> None:
    """What is right without a batch, called with one whose sizes coincide."""
    call, case, _ = min(examination.pairs, key=lambda pair: _width(pair[1]))
    if call.way.layout != "td" or examination.diagnosis.is_random:
        return
    subject = examination.diagnosis.subject
    if subject.takes_arrays or subject.has_no_batch:
        return  # numpy turns all axes of an array round with .T, where PyTorch objects; or who calls it was told
    for module, size in _square_modules(examination, call, case):
        if size > WIDEST:
            continue
        whole = _cube(case, size)
        alone = replace(call, module=module, which=[])
        together = replace(alone, way=Way("btd", ""), which=[])
        with without_dropout():
            try:
                with warnings.catch_warnings(), _warned_each_time():
                    warnings.filterwarnings("error", message=".*deprecated.*")  # .T of three axes: torch itself objects
                    output = together(whole)
            except Failed:  # an error, or a shape that nobody takes for an output, is no silent mistake
                continue
            each = torch.cat([alone(_sample(whole, at)) for at in range(size)])
        if output_gap(each, output):
            examination.add_mistake("absolute-axes", named=_named_axes(examination, call), batch=size)
        return


@contextmanager
def _warned_each_time() -> Iterator[None]:
    """PyTorch's warnings each time, also those that it gave in an earlier call."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


def _square_modules(examination: Examination, call: ProbeCall, case: Case) -> Iterator[tuple[nn.Module | None, int]]:
    """The module as it was called, and one with a single head: several are laid side by side along a wrong axis."""
    yield call.module, WIDTH_OF_FUNCTIONS if case.q is not None else _width(case)
    build = examination.diagnosis.subject.build
    if case.q is None and build is not None:
        size = WIDTH_OF_ONE_HEAD
        module, _ = build(Sizes(batch=size, heads=1, queries=size, keys=size, d_key=size, d_value=size))
        yield in_mode(in_float64(module), training=False), size


def _cube(case: Case, size: int) -> Case:
    """A case with as many samples as tokens and channels."""
    if case.q is not None:
        q, k, v = (drawn(size, 1, size, size, seed=SEED + n) for n in range(3))
        return Case(q, q, q) if case.q is case.k else Case(q, k, v)
    names = [name for name in ("x", "context", "values") if getattr(case, name) is not None]
    made: dict[str, Any] = {name: drawn(size, size, size, seed=SEED + n) for n, name in enumerate(names)}
    return replace(case, **made)


def _width(case: Case) -> int:
    tensor = case.q if case.q is not None else case.x
    assert tensor is not None
    return tensor.shape[-1]


def _sample(case: Case, at: int) -> Case:
    return with_tensors(case, lambda tensor: tensor[at : at + 1])


def _named_axes(examination: Examination, call: ProbeCall) -> str:
    """The axes that it is told, by its attributes or its arguments."""
    named: dict[str, int] = {}
    for name in ("row_dim", "col_dim"):
        parameter = examination.diagnosis.subject.called.get(name)
        value = parameter.default if parameter is not None else None
        for part in call.module.modules() if call.module is not None else ():
            value = getattr(part, name, value)
        if isinstance(value, int):
            named[name] = value
    return f" ({', '.join(f'{name}={value}' for name, value in named.items())})" if named else ""


def samples_mixed(examination: Examination) -> None:
    """Another second sample, and the first one's output."""
    if examination.is_explained or examination.diagnosis.is_random:
        return
    call, case, _ = examination.pairs[0]
    if "b" not in (call.way.layout if not call.way.flat else "b"):
        return

    def change(tensor: Tensor) -> Tensor:
        tensor[1:] = with_other_numbers(tensor[1:])
        return tensor

    with without_dropout(), seeded():
        gap = output_gap(call(case)[0], call(with_tensors(case, change))[0])
    if gap and is_repeatable(call, case):
        examination.add_mistake("batch-mixed", number=gap)
