"""The questions about behaviour, in their order, and who answers each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from regard.check.behaviour.axes import axes_from_the_front, samples_mixed
from regard.check.behaviour.calls import first_line_of
from regard.check.behaviour.causality import future_leaks
from regard.check.behaviour.dropout import dropout_in_eval, dropout_of_scores
from regard.check.behaviour.examination import Examination
from regard.check.behaviour.gradients import gradients_missing
from regard.check.behaviour.inputs import inputs_overwritten
from regard.check.behaviour.large_scores import fill_not_low_enough, overflow
from regard.check.behaviour.masked_rows import nothing_to_attend_to
from regard.check.behaviour.precision import half_precision, single_precision
from regard.check.behaviour.state import state_kept
from regard.check.sandbox.answer import error_text
from regard.check.sandbox.faults import fault_reason
from regard.check.search.calls import Failed
from regard.check.search.stage import Diagnosis
from regard.check.target.seeds import seeded

__all__ = ["QUESTIONS", "examine"]

MAX_SECONDS = 10.0
"""For all questions of code that takes long for each call, or waits; a note tells which ones were not asked by then."""
QUESTIONS: tuple[tuple[Callable[[Examination], None], str], ...] = (
    (dropout_in_eval, "whether two calls give the same output"),
    (inputs_overwritten, "whether it writes into its inputs"),
    (state_kept, "whether a call changes what the next one gives"),
    (dropout_of_scores, "where it has dropout"),
    (axes_from_the_front, "whether it takes a batch for something else"),
    (samples_mixed, "whether the samples of a batch stay apart"),
    (future_leaks, "whether later tokens have an influence"),
    (gradients_missing, "whether gradients reach every input and parameter"),
    (nothing_to_attend_to, "a query with nothing to attend to"),
    (overflow, "scores in the thousands"),
    (fill_not_low_enough, "scores as low as those of blocked keys"),
    (half_precision, "float16 and bfloat16"),
    (single_precision, "the precision in which it computes"),
)
"""What is asked, in this order, and the words for what was not."""


def examine(diagnosis: Diagnosis, seconds: float = MAX_SECONDS) -> None:
    """Add to a diagnosis what is shown by how its implementation behaves: mistakes, and what is merely to be noted.

    To be called outside of `without_dropout`, after the search for a recipe.

    Args:
        diagnosis: with a setting in which the implementation runs; without one nothing is asked.
        seconds: after which no further question is asked.
    """
    examination = Examination(diagnosis)
    if not examination.pairs:
        return
    end = time.monotonic() + seconds
    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        late = []
        for question, subject in QUESTIONS:
            if time.monotonic() >= end:
                late.append(subject)
                continue
            try:
                question(examination)
            except Failed as error:
                examination.add_note(f"not examined: {subject}; a call raises {first_line_of(error)}")
            except Exception as error:
                fault = fault_reason(error) or f"it raises {error_text(error)}"
                examination.add_note(f"not examined: {subject}; {fault}")
        if late:
            examination.add_note(f"not examined for lack of time: {', '.join(late)}")
