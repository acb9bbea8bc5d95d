"""Dropout that stays on in eval(): found by the calls of the properties, where the search did not call the code."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import Tensor

from regard.check.behaviour.dropout import without_dropout
from regard.check.diagnosis.verdict import example_of
from regard.check.mistakes.catalog import MISTAKES
from regard.check.report.findings import Findings
from regard.check.report.records import FoundMistake
from regard.check.roles.influence import record_invocation
from regard.check.target import Failed, Invocation
from regard.check.target.numpy_by_torch import kept_objects
from regard.check.target.preparation import copied

__all__ = ["DROPOUT", "dropout_gap", "with_dropout", "with_dropout_line"]

DROPOUT = "dropout-in-eval"
"""A mistake beside which others are looked for with dropout off."""
MOVED = 1e-9
"""The smallest change of an output that is one."""
_TRAINS = re.compile("train", re.I)
_SHARE = re.compile(r"_?(?:p|rate|prob|probability|(?:\w+_)?(?:dropout|drop)\w*|\w+_pdrop)", re.I)
"""Names of the share of numbers that dropout sets to 0."""


def dropout_gap(invocation: Invocation) -> float:
    """By how much two calls in eval() differ, where without dropout they do not; 0 where they do not, or by chance."""
    try:
        one, other, again = (_outputs(invocation, seed) for seed in (1, 2, 1))
        if not _gap(one, other) or _gap(one, again):
            return 0.0
        if invocation.arrays and not any(_TRAINS.search(name) and not on for name, on in _flags(invocation)):
            return 0.0  # it is not told that nothing is trained
        with without_dropout():
            still = _gap(*(_outputs(_without_shares(invocation), seed) for seed in (1, 2)))
    except Failed:
        return 0.0
    return 0.0 if still else _gap(one, other)


def _flags(invocation: Invocation) -> list[tuple[str, bool]]:
    return [(name, value) for name, value in invocation.arguments.items() if isinstance(value, bool)]


def _without_shares(invocation: Invocation) -> Invocation:
    """The call of code that computes with numpy, whose objects drop no share of their numbers; any other as it is."""
    if not invocation.arrays:
        return invocation
    target = copied(invocation.target)
    for each in kept_objects(getattr(target, "__self__", target)):
        parts = each if isinstance(each, dict) else getattr(each, "__dict__", {})
        for name, value in parts.items():
            if isinstance(name, str) and _SHARE.fullmatch(name) and isinstance(value, float) and 0 < value < 1:
                parts[name] = 0.0
    return replace(invocation, target=target)


def with_dropout(searched: Findings, gap: float, invocation: Invocation) -> Findings:
    """With the mistake that it is."""
    if any(each.id == DROPOUT for each in searched.mistakes):
        return searched
    known = MISTAKES[DROPOUT]
    message = known.message.format_map({"number": gap})
    flag = next((name for name, _ in _flags(invocation) if _TRAINS.search(name)), None) if invocation.arrays else None
    message = message if flag is None else message.replace("in eval()", f"with {flag}=False")
    found = FoundMistake(known.id, known.step, message, known.impact, None, known.references)
    example = searched.example or example_of(known, {})
    return with_dropout_line(replace(searched, mistakes=(*searched.mistakes, found), example=example), invocation)


def with_dropout_line(searched: Findings, invocation: Invocation) -> Findings:
    """With the line of the first dropout of a call."""
    run = record_invocation(invocation, lines=True)
    line = next((each.location for each in run if each.name in ("bernoulli_", "native_dropout")), None)
    mistakes = (replace(each, location=line) if each.id == DROPOUT else each for each in searched.mistakes)
    return replace(searched, mistakes=tuple(mistakes))


def _outputs(invocation: Invocation, seed: int) -> list[Tensor]:
    return [each.detach() for each in invocation.outputs(invocation.run(seed=seed))]


def _gap(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference of two calls' outputs; 0 where it is none, or where they have other shapes."""
    if [each.shape for each in one] != [each.shape for each in other]:
        return 0.0
    gap = max((float((a - b).abs().max()) for a, b in zip(one, other, strict=True) if a.numel()), default=0.0)
    return gap if gap > MOVED else 0.0
