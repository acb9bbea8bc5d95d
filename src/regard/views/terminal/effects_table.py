"""Effects in the terminal: what was looked at beside what mattered, a bar each; plain text when piped."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from regard.escape import visible
from regard.lens.effects.effects import Effects
from regard.lens.effects.table import ESTIMATE, LOOKED_AT, NOUNS, Measure, heading, measures, summary
from regard.views.terminal.console import can_encode, marker_notes, print_line
from regard.views.terminal.table import FittingTable

DEFAULT_TOP = 20
"""The number of rows."""

BAR_WIDTH = 16
"""The columns of the longest bar."""

BARS = {LOOKED_AT: ("█", "█"), "effect": ("█", "░"), ESTIMATE: ("□", "▫")}
"""The characters of bars above and below 0."""

ASCII_BARS = {LOOKED_AT: ("#", "#"), "effect": ("#", "-"), ESTIMATE: ("o", ".")}
"""The same for a console whose encoding lacks them."""


def draw(effects: Effects, console: Console, top: int = DEFAULT_TOP, text: int | None = None) -> None:
    """Draw the strongest effects and the sentence that sums them up.

    Args:
        effects: the result of `regard.effect`.
        console: where to draw.
        top: the number of rows.
        text: which text; by default the mean over all, as `Effects.top` describes it.
    """
    first, *others = heading(effects, text)
    print_line(console, first, style="bold")
    for line in others:
        print_line(console, line)
    console.print()
    rows = effects.top(top, text=text)
    columns = measures(effects, rows, text)
    headings = [(NOUNS[effects.over], "left")]
    for measure in columns:
        headings += [(measure.name, "right"), ("", "bar")]
    table = FittingTable(*headings, compact=True)
    bars = BARS if can_encode(console, "█░□▫") else ASCII_BARS
    texts = [measure.texts() for measure in columns]
    for n, row in enumerate(rows):
        cells = [Text(visible(row.name))]
        for measure, numbers in zip(columns, texts, strict=True):
            cells += [Text(numbers[n]), _bar(measure, n, bars)]
        table.add_row(*cells)
    console.print(table)
    print_line(console, _legend(columns, bars))
    console.print()
    print_line(console, summary(effects, text), style="bold")
    names = () if effects.over not in ("tokens", "edges") or not effects.tokens else effects.tokens[text or 0]
    for note in [*(f"Note: {visible(note)}." for note in effects.notes), *marker_notes(names)]:
        print_line(console, note)


def _bar(measure: Measure, row: int, bars: dict[str, tuple[str, str]]) -> Text:
    """A bar as long as the number is large."""
    share = measure.share(row)
    above, below = bars[measure.name]
    style = "dim" if measure.name == LOOKED_AT else "cyan" if share >= 0 else "yellow"
    return Text((above if share >= 0 else below) * round(BAR_WIDTH * abs(share)), style=style)


def _legend(columns: list[Measure], bars: dict[str, tuple[str, str]]) -> str:
    """What the characters of the bars mean."""
    kinds = []
    for measure in columns:
        above, below = bars[measure.name]
        if measure.name != LOOKED_AT:
            estimated = ", estimated to first order" if measure.name == ESTIMATE else ""
            kinds.append(f"{above} raises the metric, {below} lowers it{estimated}")
    return "; ".join(kinds) + "."
