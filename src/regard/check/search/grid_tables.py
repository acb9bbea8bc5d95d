"""Tables of sinusoidal positions of a grid: a module adds what it keeps to maps (samples, channels, rows, columns).

Some of the channels are of the row of a place, the others of its column (Parmar et al. 2018, "Image Transformer",
section 3.1; Carion et al. 2020, DETR). Which of them, and in what order, is everybody's choice: what is asked is
whether the frequencies of an axis fall as powers of 10000 do, where the code says 10000.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.check.mistakes.catalog import MISTAKES
from regard.check.mistakes.sinusoids import BASE
from regard.check.report.findings import Measurement
from regard.check.sandbox.answer import error_text
from regard.check.search.recipe_search import Match
from regard.check.search.stage import Diagnosis, Stage
from regard.check.search.subject import Subject
from regard.check.search.table_calls import built, kept_tables, learns, returned_for
from regard.check.target.argument import source_of
from regard.check.target.preparation import copied, in_float64, in_mode
from regard.errors import InputError

__all__ = ["judge_grid_table", "looks_like_grid_table"]

HALVES = (8, 16)
"""Of the widths that are tried."""
ROWS, COLUMNS = 7, 9
AXES = 3
"""Of a table: channels, rows and columns."""
SEVERAL = 3
"""Frequencies that show how they go on."""
CLOSE = 1e-5
"""Of a sine that is computed in float32."""
MEASURED = 1e-3
"""Of a frequency that is told by such sines, in its logarithm."""
CERTAIN = 1e-2
"""By which a channel moves along places whose frequency is told from those beside it, for all rounding."""
_BASE = re.compile(r"(?<![\w.])(?:10_?000(?:\.0*)?|1e4)(?![\w.])", re.I)


def looks_like_grid_table(subject: Subject) -> bool:
    """Whether it is a module that learns nothing, is called with one thing and keeps a table of a grid."""
    if subject.function is not None:
        return False
    required = [
        p for p in subject.called.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(required) != 1 or required[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return False
    try:
        module = built(subject, HALVES[0])
    except InputError:
        return False
    return module is not None and not learns(module) and any(True for _ in kept_tables(module, AXES))


def judge_grid_table(subject: Subject) -> Diagnosis:
    """Whether the channels of a table that `looks_like_grid_table` are sines and cosines of the paper's frequencies."""
    diagnosis = Diagnosis(subject)
    stage = Stage("none", "", [])
    diagnosis.stages.append(stage)
    grids: list[_Grid] = []
    for half in HALVES if subject.build is not None else HALVES[:1]:
        try:
            module = built(subject, half)
        except InputError as error:
            stage.why = str(error)
            return diagnosis
        assert module is not None
        with torch.no_grad():
            added = _added(in_mode(in_float64(copied(module)), training=False), diagnosis)
        grid = added if isinstance(added, str) else _grid(added)
        if isinstance(grid, str):
            stage.why = grid
            return diagnosis
        grids.append(grid)
    wrong = [grid for grid in grids if not grid.is_of_the_paper]
    says_base = module is not None and _BASE.search(source_of(module)) is not None
    if wrong and not says_base:
        stage.why = f"its frequencies fall by {wrong[0].ratio:.4g} from pair to pair, and its code does not say 10000"
        return diagnosis
    diagnosis.measurements.append(Measurement("", len(grids), max(grid.error for grid in grids)))
    diagnosis.notes.append("some of its channels are of the row of a place, the others of its column")
    if wrong:
        diagnosis.numbers |= {"number": wrong[0].ratio, "wanted": BASE ** (-1 / wrong[0].count)}
    stage.found = Match({}, ((MISTAKES["pe-frequencies"], {}),) if wrong else (), ())
    return diagnosis


def _added(module: nn.Module, diagnosis: Diagnosis) -> Tensor | str:
    """(channels, rows, columns): what a module adds to a map, whatever it is; or why that is not known."""
    table = next(kept_tables(module, AXES)).squeeze()
    failed = ""
    for first in (True, False):
        channels = table.shape[0 if first else -1]
        sizes = table.shape[1:] if first else table.shape[:-1]
        rows, columns = min(ROWS, sizes[0]), min(COLUMNS, sizes[1])
        shape = (2, channels, rows, columns) if first else (2, rows, columns, channels)
        try:
            noise, still, moved = returned_for(module, shape, diagnosis)
        except Exception as error:
            failed = failed or f"called with x {shape}, {error_text(error)}"
            continue
        if still is None or moved is None or still.shape[-3:] != shape[1:]:
            failed = failed or f"called with x {shape}, it did not return as many numbers"
            continue
        if not torch.equal(still, moved) and not torch.allclose(moved - still, noise, atol=1e-9):
            return "what it adds to x depends on x"
        found = still.reshape(-1, *still.shape[-3:])[0].detach()
        return found if first else found.movedim(-1, 0)
    return failed


@dataclass(frozen=True)
class _Grid:
    """The frequencies of a table: those of each axis fall from 1 by one ratio."""

    ratio: float
    count: float
    """How many of them there are along an axis."""
    error: float
    is_of_the_paper: bool


def _grid(table: Tensor) -> _Grid | str:
    """The frequencies of a table (channels, rows, columns), or in which channel it is no table of sines."""
    lines: list[tuple[int, Tensor]] = []
    for number, channel in enumerate(table):
        still = [axis for axis in (0, 1) if bool((channel == channel.narrow(axis, 0, 1)).all())]
        if len(still) == 2 and min(abs(float(channel[0, 0]) - each) for each in (0, 1)) < CLOSE:
            continue  # the lowest frequencies, rounded
        if len(still) != 1:
            return f"channel {number} of {len(table)} (counted from 0) is not of the row or the column alone"
        lines.append((1 - still[0], channel.select(still[0], 0)))
    moving = [(axis, line) for axis, line in lines if _moves(line) > MEASURED]
    measured = [sorted({_frequency(line) for axis, line in moving if axis == each}, reverse=True) for each in (0, 1)]
    several = [_distinct(each) for each in measured]
    if any(len(each) < SEVERAL for each in several):
        return "its channels have too few frequencies to show how they go on"
    if abs(several[0][0] - 1) > MEASURED:
        return f"the first of its frequencies is {several[0][0]:.4g}"
    count, ratio, is_known = len(table) / 4, several[0][1] / several[0][0], False
    exponents = [each for whole in (count, 2 * count, 4 * count) for each in (whole, whole - 1) if each >= 1]
    for exponent in exponents:
        exact = BASE ** (-1 / exponent)
        if abs(math.log(exact) - math.log(ratio)) < MEASURED / exponent:
            ratio, is_known = exact, True
            break
    worst, used = 0.0, set[tuple[int, int, int]]()
    for number, (axis, line) in enumerate(lines):
        error, which, is_sine = min(_fits(line, ratio, int(count)))
        if error > (CLOSE if is_known else MEASURED):
            return f"channel {number} of {len(table)} is no sine of a frequency that falls by {ratio:.4g} from 1"
        if _moves(line) > CERTAIN and (axis, which, is_sine) in used:
            return f"channel {number} of {len(table)} is the same as one before it"
        used.add((axis, which, is_sine))
        worst = max(worst, error)
    return _Grid(ratio, count, worst, is_known)


def _fits(line: Tensor, ratio: float, count: int) -> Iterator[tuple[float, int, int]]:
    """How far a channel is from each sine and cosine of places that are counted from 0 or 1."""
    for first, which in itertools.product((0, 1), range(count)):
        angles = (torch.arange(len(line), dtype=torch.float64) + first) * ratio**which
        for is_sine, wave in ((1, angles.sin()), (0, angles.cos())):
            yield float((line - wave).abs().max()), which, is_sine


def _moves(line: Tensor) -> float:
    return float((line - line[0]).abs().max())


def _frequency(line: Tensor) -> float:
    """Of a sine along places: twice its cosine is by what the two beside a place are more than it."""
    line = line.double()
    middle, around = line[1:-1], line[2:] + line[:-2]
    twice = float((middle * around).sum() / (middle * middle).sum().clamp(min=1e-12))
    return math.acos(max(-1.0, min(1.0, twice / 2)))


def _distinct(frequencies: Sequence[float]) -> list[float]:
    """The frequencies that are not the same as the one before, the largest first; a sine and its cosine have one."""
    found: list[float] = []
    for each in frequencies:
        if not found or found[-1] - each > MEASURED * found[0]:
            found.append(each)
    return found
