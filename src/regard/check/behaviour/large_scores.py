"""Large scores: an exponential that overflows, and blocked scores that are not low enough beside them."""

from __future__ import annotations

import itertools
from dataclasses import replace

from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.recipes.case import Case
from regard.check.search.observed import Observed

__all__ = ["fill_not_low_enough", "overflow"]

OVERFLOWING = 3000.0
FACTORS = 300.0, 1e3, 3e3, 1e4, 3e4, 1e5, 1e6
"""By so much are scores made larger, to be told apart from what blocked ones become."""
FILLS = -1e3, -1e4, -9999.0, -32768.0, -32767.0, -65504.0, -65000.0, -1e5, -1e6
"""What blocked scores become in code that was written for float16, or long ago."""


def _with_larger_scores(case: Case, times: float) -> Case:
    """Larger scores, and values as they were where they can be kept."""
    if case.q is not None:
        return replace(case, q=case.q * times)
    assert case.x is not None
    if case.context is not None:
        return replace(case, x=case.x * times)
    return replace(case, x=case.x * times**0.5)


def overflow(examination: Examination) -> None:
    """Scores in the thousands."""
    for explained in itertools.islice(examination.explained_calls(), 1):
        found = explained.stage.found
        assert found is not None
        if {each.step for each, _ in found.causes} & {"weights"}:
            continue
        if bool(explained.observed.output.isnan().any()):
            continue  # whatever the scores are
        case = _with_larger_scores(explained.observed.case, OVERFLOWING)
        with without_dropout():
            output = explained.call(case)
        state = Observed(case, output).state(found.choices)
        if state is None or state.last is None or not bool(state.last.isfinite().all()):
            continue
        if bool((~output.isfinite()).any()):
            examination.add_note(
                "scores in the thousands overflow to NaN: it computes exp without subtracting the largest score"
            )


def fill_not_low_enough(examination: Examination) -> None:
    """Scores that are larger than what blocked ones become."""
    asked = list(examination.masked_calls())
    for explained in examination.explained_calls():
        if explained.stage.asked == "built-in":
            asked.append((explained.stage, explained.call, explained.observed))
            break
    for stage, call, observed in asked:
        if stage.found is None or "fill" in stage.found.choices or stage.found.choices.get("seen") == "none":
            continue
        every = []
        for times in FACTORS:
            larger = Observed(_with_larger_scores(observed.case, times), observed.output)
            with without_dropout():
                larger.output = call(larger.case)
            every.append(larger)
        if all(each.fits(stage.found.choices) for each in every):
            continue
        for fill in FILLS:
            for choice in (fill, ("add", fill)):
                if all(each.fits({**stage.found.choices, "fill": choice}) for each in every):
                    examination.add_note(
                        f"blocked scores become about {fill:g}, not -inf: they leak if allowed scores are as low"
                    )
                    return
