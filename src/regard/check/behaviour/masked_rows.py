"""Rows that are masked whole: what a query gets that has nothing to attend to."""

from __future__ import annotations

from dataclasses import replace

from regard.check.behaviour.calls import first_line_of, output_gap
from regard.check.behaviour.dropout import without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.search.calls import Failed
from regard.check.search.observed import Observed

__all__ = ["nothing_to_attend_to"]

OUTCOMES: tuple[tuple[float | None, str], ...] = (
    (None, "zeros, as in regard"),
    (-1e9, "the mean of all values; in regard it gets zeros"),
)
"""What blocked scores become, None for -inf; and what the query gets then."""


def nothing_to_attend_to(examination: Examination) -> None:
    """A row that is blocked whole."""
    for stage, call, observed in examination.masked_calls():
        may = observed.case.may
        if may is None or stage.found is None or {known.step for known, _ in stage.found.causes} & {"masked"}:
            continue
        may = may.clone()
        may[0, :, 0] = False  # of padding: the whole first sample
        case = replace(observed.case, may=may)
        try:
            with without_dropout():
                row = call(case)[0].select(-2, 0)
        except Failed as error:
            examination.add_note(f"a query with nothing to attend to raises {first_line_of(error)}")
            return
        if bool(row.isnan().any()):
            examination.add_note("a query with nothing to attend to gets NaN; in regard it gets zeros")
            return
        for fill, says in OUTCOMES:
            choices = {**stage.found.choices, **({} if fill is None else {"fill": fill})}
            state = Observed(case, observed.output).state(choices)
            if state is not None and state.last is not None and not output_gap(state.last[0].select(-2, 0), row):
                examination.add_note(f"a query with nothing to attend to gets {says}")
                return
        return
