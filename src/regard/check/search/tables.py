"""Tables of sinusoidal positions: is it the paper's (Attention Is All You Need, section 3.5), and if not, what is it?

A table is read from the numbers alone: which channels are sines and which cosines, by which exponent their wavelengths
rise, and up to which number. A mistake is named only if its formula gives every number at every size that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.mistake import Convention
from regard.check.mistakes.sinusoids import BASE, FORMULAS, FORMULAS_OF_ANY_BASE, GROWING, PAPER, Formula, own_exponents
from regard.check.report.findings import Measurement
from regard.check.search.recipe_search import Match
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import Subject
from regard.check.search.table_calls import tables_of

__all__ = ["judge_table"]


def judge_table(subject: Subject) -> Diagnosis:
    """Which formula gives the table of a function or module that `looks_like_table`."""
    diagnosis = Diagnosis(subject)
    stage = Stage("none", "", [])
    diagnosis.stages.append(stage)
    tables: list[Tensor] = []
    with torch.no_grad():
        for table in tables_of(diagnosis):
            if isinstance(table, str):
                stage.why = table
                return diagnosis
            if not bool(table.isfinite().all()):
                stage.why = "its table holds numbers that are not finite"
                return diagnosis
            tables.append(table)
    stage.found = _explained(tables, diagnosis)
    if stage.found is None:
        stage.why = diagnosis.why.pop() if diagnosis.why else _first_gap(tables)
    return diagnosis


def _explained(tables: Sequence[Tensor], diagnosis: Diagnosis) -> Match | None:
    if diagnosis.subject.function is None and all(map(_is_one_row, tables)):
        return _match(("pe-one-row",))
    for formula in FORMULAS:
        if formula.fits(tables, BASE):
            diagnosis.measurements.append(_measurement(formula, tables, BASE))
            return _match(formula.mistakes, formula.convention)
    for formula in GROWING:
        if formula.fits(tables, BASE):
            diagnosis.numbers["number"] = BASE
            diagnosis.measurements.append(_measurement(formula, tables, BASE))
            return _match(formula.mistakes, formula.convention)
    widths = {table.shape[1] for table in tables}
    for formula in FORMULAS_OF_ANY_BASE:
        bases = [base for table in tables if (base := formula.base(table)) is not None]
        if not bases or max(bases) - min(bases) > 1e-4 * max(bases):
            continue
        base = sorted(bases)[len(bases) // 2]
        base = float(round(base)) if abs(base - round(base)) <= 1e-5 * base else base
        if not formula.fits(tables, base):
            continue
        if len(widths) == 1 and base != float(f"{base:.2g}"):
            # Of one width alone, another exponent would do as well as another base.
            diagnosis.why.append(f"its wavelengths seem to rise to {base:g} x 2 pi, which one width alone cannot show")
            return None
        if formula.exponents is own_exponents and (base**0.5).is_integer() and base**0.5 % 100 == 0:
            diagnosis.why.append(
                f"the exponent of channel i is i/d with a base of {base:g}, or 2i/d with {base**0.5:g}: "
                "both give the same numbers"
            )
            return None
        diagnosis.numbers["number"] = base
        diagnosis.measurements.append(_measurement(formula, tables, base))
        return _match(("pe-base", *formula.mistakes), formula.convention)
    return None


def _is_one_row(table: Tensor) -> bool:
    """Whether each position has the same numbers, which are not all 0."""
    return len(table) > 1 and bool((table == table[:1]).all() and (table != 0).any())


def _measurement(formula: Formula, tables: Sequence[Tensor], base: float) -> Measurement:
    """How near the tables are to a formula's."""
    return Measurement("", len(tables), max(formula.error(table, base).max().item() for table in tables))


def _match(mistakes: Iterable[str], convention: str = "") -> Match:
    otherwise = (Convention("convention", convention, {}),) if convention else ()
    order = list(MISTAKES)
    named = sorted(mistakes, key=order.index)
    return Match({}, tuple((MISTAKES[name], {}) for name in named), otherwise)


def _first_gap(tables: Sequence[Tensor]) -> str:
    """The first channel that is not the paper's, in words."""
    for table in tables:
        wrong = PAPER.error(table, BASE) > 1
        if not bool(wrong.any()):
            continue
        channel = int(wrong.any(0).nonzero()[0])
        position = int(wrong[:, channel].nonzero()[0])
        angle = PAPER.angles(len(table), table.shape[1], BASE)[position, channel].item()
        is_sine = channel % 2 == 0
        paper = math.sin(angle) if is_sine else math.cos(angle)
        return (
            f"no known mistake explains its table; channel {channel} of {table.shape[1]} (counted from 0) is the first "
            f"to deviate: at position {position} it is {table[position, channel].item():.6f}, the paper's is "
            f"{'sin' if is_sine else 'cos'}({angle:.6g}) = {paper:.6f}"
        )
    return "no known mistake explains its table"
