"""What the process of the learner's code does: it loads the file, runs the calls, and finds the mistake."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.check.report import Example, FoundMistake
from regard.check.source.importer import load
from regard.exercises.checking.diagnosis import diagnose
from regard.exercises.checking.findings import Findings
from regard.exercises.checking.places import LearnerCode
from regard.exercises.checking.results import TOLERANCE, Result, run_call, tensors_of
from regard.exercises.checking.unexplained import OBSERVATIONS
from regard.exercises.exercise import Exercise
from regard.exercises.problems.catalog import PROBLEMS
from regard.exercises.problems.problem import ModuleWeightsMissing, Problem

__all__ = ["course_result", "examine", "examine_code"]

MAX_ROWS, MAX_COLUMNS = 6, 6
"""Of a table of numbers."""


def examine(path: str, exercise: Exercise) -> Findings:
    """Load a learner's file and check it.

    Args:
        path: of the file.
        exercise: what it is held against.

    Raises:
        InputError: the file cannot be imported, or lacks the function or class; the message names the line.
    """
    learner = load(f"{path}:{exercise.name}", [])
    return examine_code(learner, exercise, os.path.abspath(path))


def examine_code(learner: Any, exercise: Exercise, path: str) -> Findings:
    """Check a function or a class.

    Args:
        learner: what was written.
        exercise: what it is held against.
        path: the absolute path of its file.
    """
    problem, code = PROBLEMS[exercise.slug], LearnerCode(path, exercise.name)
    results = []
    try:
        for call in problem.calls():
            results.append(run_call(learner, problem, call, path))
            if results[-1].is_stub:
                return Findings(is_stub=True)
    except ModuleWeightsMissing as error:
        return Findings(reasons=(str(error),))
    right = [each for each in results if each.is_right]
    largest = max((each.difference for each in right), default=0.0)
    changed = _changed_inputs(learner, problem)
    if len(right) == len(results):
        notes = ("its numbers are those of float32, which rounds to about 7 digits",) if largest > TOLERANCE else ()
        changes = (_inputs_changed(code),) if changed else ()
        return Findings(len(results), len(right), largest, mistakes=changes, notes=notes)
    mistakes = diagnose(learner, problem, results, code)
    return Findings(
        len(results),
        len(right),
        largest,
        mistakes=mistakes,
        example=_example(results, problem.names),
        notes=_notes(results),
    )


def _changed_inputs(learner: Any, problem: Problem) -> bool:
    """Whether a function changes a tensor that it is given; a class gets copies, and is not asked."""
    call = problem.calls()[0]
    if call.init:
        return False
    given = tuple(each.clone() if isinstance(each, Tensor) else each for each in call.args)
    try:
        with torch.no_grad():
            learner(*given)
    except Exception:
        return False
    return any(
        not torch.equal(one, other) for one, other in zip(given, call.args, strict=True) if isinstance(one, Tensor)
    )


def _inputs_changed(code: LearnerCode) -> FoundMistake:
    message = "it changes the tensors that it is given, which belong to its caller"
    place = code.place([], [], r"[-+*/@]=|\w_\(|\]\s*=[^=]")
    return FoundMistake("inputs-changed", "call", message, OBSERVATIONS["inputs-changed"].impact, place)


def _notes(results: Sequence[Result]) -> tuple[str, ...]:
    """What the learner should know besides: the course's numbers do not show it, or other calls fail."""
    notes = []
    if results[0].is_right:
        notes.append("on the course's numbers it is right; other numbers show the mistake")
    failed = next((each for each in results if each.error), None)
    if failed is not None and any(each.yours is not None for each in results):
        notes.append(f"on {failed.call.setting} it raises {failed.error}")
    return tuple(notes)


def _example(results: Sequence[Result], names: Sequence[str]) -> Example | None:
    """The first wrong result that there is, the course's first: what came out beside what should have."""
    wrong = next((each for each in results if not each.is_right and each.yours is not None), None)
    if wrong is None or wrong.yours is None:
        return None
    pairs = list(zip(wrong.yours, wrong.right, strict=True))
    at = next(
        i
        for i, (one, other) in enumerate(pairs)
        if one.shape != other.shape or not torch.allclose(one, other, atol=1e-6)
    )
    yours, where = _matrix(*pairs[at])
    right, _ = _matrix(pairs[at][1], pairs[at][0])
    step = (names[at] if names else "the result") + where
    return Example(step, wrong.call.setting, yours.tolist(), right.tolist())


def _matrix(tensor: Tensor, other: Tensor) -> tuple[Tensor, str]:
    """A matrix of a tensor: the first that differs from the other one, where it holds several."""
    where = ""
    while tensor.ndim > 2:
        same = other.ndim == tensor.ndim and len(other) == len(tensor)
        at = next((i for i in range(len(tensor)) if same and not torch.equal(tensor[i], other[i])), 0)
        where += f"[{at}]" if where else f" [{at}]"
        tensor, other = tensor[at], other[at] if same else other
    rows = tensor.reshape(1, -1) if tensor.ndim < 2 else tensor
    return rows[:MAX_ROWS, :MAX_COLUMNS], where


def course_result(exercise: Exercise) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """The names of an exercise's results, and the definition's on the numbers of the course.

    Args:
        exercise: any.
    """
    problem = PROBLEMS[exercise.slug]
    call = problem.calls()[0]
    stub: dict[str, Any] = {"nn": nn, "regard": SimpleNamespace(MultiHeadAttention=MultiHeadAttention)}
    exec(exercise.stub, stub)  # a class of which the parameters are made; its forward is not called
    _, args = problem.run(stub[exercise.name], call)
    with torch.no_grad():
        return problem.names, tensors_of(problem.right(*args)) or ()
