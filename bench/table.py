"""The table of BENCHMARKS.md."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "BENCHMARKS.md"


@dataclass(frozen=True)
class Row:
    """One measurement, in words."""

    case: str
    against: str
    speed: str
    at_least: str = ""
    over_the_floor: str = ""

    def __str__(self) -> str:
        return f"| {' | '.join(astuple(self))} |"


LAST = {
    **dict.fromkeys(("generation", "smollm2"), "share of the floor"),
    **dict.fromkeys(("dates", "lm", "digits"), "took"),
    "gpu": "took",
}
"""What the last column says, where it is not the time over the floor."""


COLUMNS = {
    "live_numbers": ("", "", "largest difference, of how many numbers", "bound", ""),
    "ioi": ("", "zero", "mean, resample", "first order", "attention to the name"),
    "capitals": ("prompt", "probability", "centres 0, 3, 6", "9, 12, 15", "18, 21, 24, 27"),
    "induction": ("", "gain", "change", "", ""),
}
"""The columns of tables that measure no time."""


def write(section: str, head: str, rows: list[Row]) -> None:
    """Put a table between the section's two marks, and leave the rest of the page alone."""
    begin, end = f"<!-- {section}: make bench writes from here -->\n", f"<!-- {section}: to here -->\n"
    timing = ("case", "against", "speed", "at least", LAST.get(section, "time over the floor"))
    columns = COLUMNS.get(section, timing)
    table = [f"| {' | '.join(columns)} |", "|---|---|---|---|---|", *map(str, rows)]
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    PAGE.write_text("".join([before, begin, head, "\n\n", "\n".join(table), "\n", end, after]), encoding="utf-8")
