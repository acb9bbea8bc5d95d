"""What can be said of wrong results that no known mistake explains: errors, shapes, NaN, the first wrong number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from regard.check.report import FoundMistake
from regard.exercises.checking.places import LearnerCode
from regard.exercises.checking.results import Result

__all__ = ["OBSERVATIONS", "Observation", "observed"]


@dataclass(frozen=True)
class Observation:
    """What every exercise may show, whatever the mistake is."""

    step: str
    impact: str


OBSERVATIONS: Mapping[str, Observation] = {
    "raises": Observation("call", "There is no result."),
    "nothing-returned": Observation("result", "Whoever calls it gets None: a function without return gives None."),
    "wrong-result": Observation("result", "Whoever calls it cannot use what it returns."),
    "wrong-shape": Observation("result", "What reads the result takes one axis for another, or fails."),
    "not-a-number": Observation("result", "NaN spreads to everything that is computed from it."),
    "constant-result": Observation("result", "It is right for the course's numbers alone."),
    "wrong-numbers": Observation("result", "No mistake that is known here gives these numbers."),
    "inputs-changed": Observation("call", "Whoever calls it finds other numbers in its own tensors afterwards."),
}
"""By their ids."""


def observed(results: Sequence[Result], names: Sequence[str], code: LearnerCode) -> FoundMistake:
    """The most telling observation of some results, of which one at least is wrong.

    Args:
        results: of all calls.
        names: of several results of one call.
        code: the learner's.
    """
    wrong = next(each for each in results if not each.is_right)
    of = f" ({wrong.call.setting})"
    if wrong.error:
        return _said("raises", f"it raises {wrong.error}{of}", code, wrong.line)
    if wrong.yours is None:
        kind = "nothing-returned" if "(None)" in wrong.returned else "wrong-result"
        return _said(kind, f"{wrong.returned}{of}", code)
    at = next(i for i, pair in enumerate(zip(wrong.yours, wrong.right, strict=True)) if not _equal(*pair))
    yours, right = wrong.yours[at], wrong.right[at]
    name = f"{names[at]} " if names else ""
    if yours.shape != right.shape:
        shapes = f"{_shape(yours)}; {_shape(right)} is wanted"
        return _said("wrong-shape", f"{name or 'the result '}is {shapes}{of}", code)
    bad = ~yours.isfinite() & right.isfinite()
    if bad.any():
        place = bad.nonzero()[0].tolist()
        return _said(
            "not-a-number", f"{name or 'the result '}is {yours[tuple(place)].item()} at {_index(place)}{of}", code
        )
    if results[0].is_right and not any(each.is_right for each in results if not each.call.is_course):
        return _said("constant-result", "it gives the course's numbers, and wrong ones for all other inputs", code)
    place = ((yours - right).abs() > 1e-6 * right.abs().max()).nonzero()[0].tolist()
    numbers = f"{yours[tuple(place)].item():.4f} at {_index(place)}; {right[tuple(place)].item():.4f} is wanted"
    return _said("wrong-numbers", f"the first wrong number of {name or 'the result '}is {numbers}{of}", code)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one - other).abs() <= 1e-6 * other.abs().max()).all())


def _said(id_: str, message: str, code: LearnerCode, line: int | None = None) -> FoundMistake:
    known = OBSERVATIONS[id_]
    return FoundMistake(id_, known.step, message, known.impact, code.at(line) or code.result_line())


def _shape(tensor: Tensor) -> str:
    return f"of shape {tuple(tensor.shape)}" if tensor.ndim else "one number"


def _index(place: Sequence[int]) -> str:
    return f"[{', '.join(map(str, place))}]" if place else "its only place"
