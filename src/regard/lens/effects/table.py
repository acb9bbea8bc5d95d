"""The table of an `Effects`: looked at beside mattered, a bar each, and the sentence that sums it up."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass

from torch import Tensor

from regard.escape import visible
from regard.lens.effects.columns import EffectColumns, RankedEffect

BAR_WIDTH = 16
"""The width of the longest bar, in characters."""

ABLATION_TEXTS = {
    "zero": "zero, the part's output is set to zero",
    "mean": "mean, the part's output is set to its mean over the source",
    "resample": "resample, the part's output is taken from another text of the source",
    "block": "block, nobody may look there",
}
METHOD_TEXTS = {
    "exact": "computed exactly",
    "gradient": "estimated to first order by the gradient, none computed exactly",
    "both": "all estimated to first order by the gradient, the strongest computed exactly",
}
SMALLEST_SHARE = 1e-3
"""An effect is said to be a part of the metric where the metric is at least this share of it."""
NOUNS = {"heads": "head", "layers": "layer", "tokens": "token", "edges": "edge"}


LOOKED_AT, ESTIMATE = "looked at", "estimate"
"""The names of two columns; the third is "effect"."""

LOOKS = {
    "heads": ("looks", "gives"),
    "layers": ("looks", "gives"),
    "tokens": ("is looked at", "gets"),
    "edges": ("is looked at", "gets"),
}


def effects_table(effects: EffectColumns, k: int, text: int | None) -> str:
    """See `Effects.table`."""
    rows = effects.top(k, text=text)
    lines = [*heading(effects, text), *_columns(effects, rows, text), summary(effects, text)]
    return "\n".join([*lines, *(f"Note: {note}." for note in effects.notes)])


def summary(effects: EffectColumns, text: int | None = None) -> str:
    """The sentence that holds what was looked at against what mattered; see `Effects.top` for `text`."""
    ranked = effects.top(1, text=text)
    if not ranked:
        return "Nothing is known yet."
    best, baseline, noun = ranked[0], _baseline(effects, text), NOUNS[effects.over]
    matters = f"the {noun} that matters most, {visible(best.name)}, adds {_amount(best)}"
    # Nothing is a share of a log-probability, which is below 0, nor of a metric that compares with the model itself.
    if baseline > SMALLEST_SHARE * abs(best.best):
        matters += f" of {_short(baseline)}"
    hardest = _most_looked_at(effects, text)
    if hardest is None:
        sentence = f"Of {_count(effects, text)}, {matters}."
    else:
        # Where only the strongest are exact, the estimates are those of all.
        column, what = ("values", "effect") if _all_are_exact(effects, text) else ("estimates", "estimated effect")
        together = _short(effects.correlation("looked_at", column, text=text), 2)
        # What is too long for the sentence stands in the heading.
        attention = "attention" if "," in effects.looked_at_name else visible(effects.looked_at_name)
        looks, gets = LOOKS[effects.over]
        sentence = (
            f"Over {_count(effects, text)}, {attention} and {what} correlate at {together}; the "
            f"{noun} that {looks} hardest, {visible(hardest.name)} ({hardest.looked_at:.2f}), adds "
            f"{_amount(hardest)} to the metric; {matters} (it {gets} {best.looked_at:.2f})."
        )
    if effects.method == "both":
        rank = _short(effects.correlation("estimates", "values", rank=True, text=text), 2)
        sentence += f" Where both are known, estimate and exact effect have the rank correlation {rank}."
    return sentence


def heading(effects: EffectColumns, text: int | None = None) -> list[str]:
    """What was measured and how, line by line: the metric, the ablation and the method, and which attention it is."""
    texts = len(effects.baseline)
    which = (
        f"text {text or 0} of {texts}, counted from 0"
        if text is not None or effects.over in ("tokens", "edges")
        else f"mean of {texts} texts"
    )
    of_texts = f" ({which})" if texts > 1 else ""
    lines = [
        f"Effect of each {NOUNS[effects.over]} on {visible(effects.metric)}: {_short(_baseline(effects, text))} as the "
        f"model is{of_texts}, minus what is left without it.",
        f"Ablation: {ABLATION_TEXTS.get(effects.ablation, effects.ablation)}. Effects: {METHOD_TEXTS[effects.method]}.",
    ]
    if effects.looked_at is not None:
        lines.append(f"Looked at: {visible(effects.looked_at_name)}.")
    return lines


@dataclass(frozen=True)
class Measure:
    """One column of numbers: what was looked at, the exact effects, or the estimates of them."""

    name: str
    """``looked at``, ``effect`` or ``estimate``."""
    numbers: list[float]
    """One for each row; NaN where it is not known."""
    largest: float
    """The size of the number whose bar is full: effects and their estimates have the same."""

    def texts(self) -> list[str]:
        """The numbers, all with as many decimals as the largest needs; effects have a sign."""
        decimals = 2 - math.floor(math.log10(self.largest)) if self.largest > 0 else 2
        sign = "" if self.name == LOOKED_AT else "+"
        return ["-" if math.isnan(x) else f"{x:{sign}.{min(max(decimals, 0), 9)}f}" for x in self.numbers]

    def share(self, row: int) -> float:
        """A number as a share of the largest, -1 to 1; 0 where it is not known."""
        x = self.numbers[row]
        return 0.0 if math.isnan(x) or self.largest <= 0.0 else x / self.largest


def measures(effects: EffectColumns, rows: list[RankedEffect], text: int | None) -> list[Measure]:
    """The columns of a table of some parts: looked at, and beside it what mattered."""
    strongest = max(_largest(effects.of_text(t, text)) for t in (effects.values, effects.estimates))
    found = []
    if effects.looked_at is not None:
        largest = _largest(effects.of_text(effects.looked_at, text))
        found.append(Measure(LOOKED_AT, [row.looked_at for row in rows], largest))
    if effects.method != "gradient":
        found.append(Measure("effect", [row.effect for row in rows], strongest))
    if effects.estimates is not None:
        found.append(Measure(ESTIMATE, [row.estimate for row in rows], strongest))
    return found


def _columns(effects: EffectColumns, rows: list[RankedEffect], text: int | None) -> list[str]:
    """The rows of the table under their headings."""
    columns = [[NOUNS[effects.over], *(visible(row.name) for row in rows)]]
    sides = ["<"]
    for measure in measures(effects, rows, text):
        columns.append([measure.name, *measure.texts()])
        columns.append(["", *(_bar(measure.share(n)) for n in range(len(rows)))])
        sides.extend("><")
    widths = [max(map(_width, column)) for column in columns]
    lines = [
        "  ".join(_aligned(cell, width, side) for cell, width, side in zip(line, widths, sides, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]
    return [lines[0], "─" * max(map(_width, lines)), *lines[1:]]


def _most_looked_at(effects: EffectColumns, text: int | None) -> RankedEffect | None:
    """The part with the largest attention; None if there is none."""
    looked_at = effects.of_text(effects.looked_at, text)
    if looked_at is None or bool(looked_at.isnan().all()):
        return None
    return effects.ranked(int(looked_at.nan_to_num(-math.inf).argmax()), text=text)


def _amount(row: RankedEffect) -> str:
    """The effect, or about so much where it is an estimate."""
    return ("about " if math.isnan(row.effect) else "") + _short(row.best)


def _baseline(effects: EffectColumns, text: int | None) -> float:
    return float(effects.of_text(effects.baseline, text))


def _all_are_exact(effects: EffectColumns, text: int | None) -> bool:
    """Whether every part that has an estimate has an exact effect too."""
    estimates = effects.of_text(effects.estimates, text)
    values = effects.of_text(effects.values, text)
    return estimates is None or not bool((values.isnan() & ~estimates.isnan()).any())


def _count(effects: EffectColumns, text: int | None) -> str:
    """How many parts there are, in words."""
    column = effects.of_text(effects.values if effects.estimates is None else effects.estimates, text)
    count = int((~column.isnan()).sum())
    return f"{count} {NOUNS[effects.over]}{'' if count == 1 else 's'}"


def _largest(t: Tensor | None) -> float:
    return 0.0 if t is None or not t.numel() else float(t.abs().nan_to_num(0.0).max())


def _bar(share: float) -> str:
    """A bar of its share of the largest; a lighter one below 0."""
    return ("█" if share > 0 else "░") * round(BAR_WIDTH * abs(share))


def _short(x: float, digits: int = 3) -> str:
    return "-" if math.isnan(x) else f"{x:.{digits}g}"


def _width(text: str) -> int:
    """The columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _aligned(cell: str, width: int, side: str) -> str:
    space = " " * (width - _width(cell))
    return space + cell if side == ">" else cell + space
