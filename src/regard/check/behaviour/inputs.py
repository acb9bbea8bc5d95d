"""Inputs that are overwritten: they belong to the caller."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch

from regard.check.behaviour.calls import joined
from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.recipes.case import Case
from regard.check.search.calls import Failed, ProbeCall, calls_with
from regard.check.search.cases import lengths
from regard.check.target.running import tensors_in

__all__ = ["inputs_overwritten"]

MAX_UNEXPLAINED = 4
"""Calls with a mask of which no recipe is known."""


def inputs_overwritten(examination: Examination) -> None:
    """Every tensor that is handed over, before and after."""
    changed: dict[str, None] = {}
    for call, case in _every_call(examination):
        given = call.arguments(case)
        before = {name: copy.deepcopy(value) for name, value in given.items()}
        try:
            with without_dropout():
                call.result(given)
        except Failed:
            continue
        for name, value in given.items():
            for old, new in zip(tensors_in(before[name]), tensors_in(value), strict=True):
                if old.shape != new.shape or not torch.equal(old, new):
                    changed[name] = None
    if changed:
        examination.add_mistake("inputs-changed", what=joined(list(changed)))


def _every_call(examination: Examination) -> Iterator[tuple[ProbeCall, Case]]:
    """One call without a mask, and one with each mask that it takes."""
    call, case, _ = examination.pairs[0]
    yield call, case
    stages = examination.diagnosis.stages
    for stage in stages[1:]:
        if stage.call is not None and stage.observed:
            yield examination.call_of(stage, stage.observed[0]) or stage.call, stage.observed[0].case
    asked = {stage.mask for stage in stages if stage.call is not None}
    for name, means in examination.roles.items():
        if f"argument {name}" not in asked and means in ("mask", "padding"):
            yield from _calls_with_mask(call, case, name, per_query=means == "mask")


def _calls_with_mask(call: ProbeCall, case: Case, name: str, *, per_query: bool) -> Iterator[tuple[ProbeCall, Case]]:
    """Calls that run with a mask of the last key, in some forms."""
    queries, keys = lengths(case)
    first = case.q if case.q is not None else case.x
    assert first is not None
    ran = 0
    for masked in calls_with(call, name, ("bhqk", "qk", "bqk") if per_query else ("bk", "b1k", "b11k")):
        may = torch.ones(len(first), 1, queries if per_query else 1, keys, dtype=torch.bool)
        may[..., -1] = False
        if ran < MAX_UNEXPLAINED:
            try:
                masked(replace(case, may=may))
            except Failed:
                continue
            ran += 1
            yield masked, replace(case, may=may)
