"""Which mistake gives the learner's numbers: a known variant of the definition, or what `regard.check` finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.check.conclusion import conclude
from regard.check.report import FoundMistake
from regard.check.sandbox.torch_settings import UserSettings
from regard.errors import InputError
from regard.exercises.checking.places import LearnerCode
from regard.exercises.checking.results import Result, agree, as_float64
from regard.exercises.checking.unexplained import observed
from regard.exercises.problems.problem import MISFIT, Problem, Variant

__all__ = ["diagnose"]


def diagnose(learner: Any, problem: Problem, results: Sequence[Result], code: LearnerCode) -> tuple[FoundMistake, ...]:
    """The mistakes that together explain some results, of which one at least is wrong.

    A mistake is named only if the definition with this mistake returns the learner's numbers to 1e-9 in every call, and
    raises where the learner's code raised; or if `regard.check` proves it in another way.

    Args:
        learner: the function or the class.
        problem: what it is held against.
        results: of all calls.
        code: the learner's.
    """
    for variant in problem.variants():
        if agree(variant, results):
            return _placed(variant, learner, problem, results, code)
    first = observed(results, problem.names, code)
    if problem.is_attention and first.id in ("wrong-numbers", "not-a-number", "wrong-shape"):
        return _by_check(learner) or (first,)
    return (first,)


def _placed(
    variant: Variant, learner: Any, problem: Problem, results: Sequence[Result], code: LearnerCode
) -> tuple[FoundMistake, ...]:
    """The mistakes of a variant, with the learner's lines."""
    wrong = next((each for each in results if not each.is_right and each.yours is not None), results[0])
    with as_float64():
        work, _ = problem.run(learner, wrong.call)
        records = code.records(work)
    try:
        trails = dict(zip(variant.mistakes, variant.trails(wrong.args), strict=False))
    except MISFIT:
        trails = {}
    several = []
    for found in variant.found(wrong.args):
        pattern = problem.patterns.get(found.id, "")
        place = code.by_pattern(pattern) if pattern else None  # the same numbers in another order show no line
        pattern = getattr(variant, "pattern", "")
        place = place or code.place(records, trails.get(found.id, []), pattern)
        several.append(replace(found, location=place))
    return tuple(several)


def _by_check(learner: Any) -> tuple[FoundMistake, ...]:
    """What `regard check` says of the same code."""
    try:
        return conclude(learner, {}, UserSettings()).mistakes
    except InputError:
        return ()
