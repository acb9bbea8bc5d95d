"""Tables that break no number at any width of the console: where the columns do not fit, there are several tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.escape import visible

MIN_TEXT_WIDTH = 8
"""A column of texts is at least as wide, or as wide as its longest word."""


class FittingTable(Table):
    """A table that becomes several ones, one below the other, where its columns do not fit side by side.

    Args:
        columns: the heading of each, and its kind: "left", a text, which may be broken; "right", a number; "numbers",
            several numbers, which may be broken apart; "bar", which is left out where it does not fit.
        labels: the number of first columns that name a row; each of several tables has them.
        header: whether the headings are shown.
        compact: whether one column lies between two cells, and not two.
    """

    def __init__(self, *columns: tuple[str, str], labels: int = 1, header: bool = True, compact: bool = False) -> None:
        padding = (0, 1, 0, 0) if compact else (0, 1)
        super().__init__(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=header, padding=padding)
        self.kinds = [kind for _, kind in columns]
        self.labels, self.compact = labels, compact
        for name, kind in columns:
            self.add_column(Text(visible(name)), justify="right" if kind == "right" else "left", overflow="fold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """The table, or the tables that fit into the width."""
        widths = [self._widths(column) for column in range(len(self.columns))]
        if self._total([natural for _, natural in widths]) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        for number, columns in enumerate(self._split([least for least, _ in widths], options.max_width)):
            if number:
                yield Text()
            yield self._part(columns, [widths[column] for column in columns], options.max_width)

    def _widths(self, column: int) -> tuple[int, int]:
        """The least width of a column, in which no number is broken, and the width in which nothing is."""
        cells = [_plain(cell) for cell in self.columns[column].cells]
        heading = _plain(self.columns[column].header) if self.show_header else ""
        natural = max(map(cell_len, [heading, *cells]))
        longest_word = max(map(cell_len, [*heading.split(), *(word for cell in cells for word in cell.split()), ""]))
        kind = self.kinds[column]
        if kind == "right":
            return max(map(cell_len, [*heading.split(), *cells])), natural
        return {"left": min(longest_word, MIN_TEXT_WIDTH), "numbers": longest_word}.get(kind, natural), natural

    def _total(self, widths: list[int]) -> int:
        return sum(widths) + (2 if self.compact else 3) * (len(widths) - 1)

    def _split(self, least: list[int], max_width: int) -> list[list[int]]:
        """The columns of each table."""
        labels = list(range(self.labels))
        parts = [labels]
        for column in range(self.labels, len(least)):
            if self._total([least[each] for each in [*parts[-1], column]]) <= max_width or parts[-1] == labels:
                parts[-1] = [*parts[-1], column]
            elif self.kinds[column] != "bar":
                parts.append([*labels, column])
        return parts

    def _part(self, columns: list[int], widths: list[tuple[int, int]], max_width: int) -> Table:
        """A table of some columns, the widest ones made narrower until it fits."""
        now = [natural for _, natural in widths]
        while self._total(now) > max_width:
            room = [width if width > least else 0 for width, (least, _) in zip(now, widths, strict=True)]
            if not any(room):
                break
            now[room.index(max(room))] -= 1
        part = Table(box=self.box, show_edge=False, pad_edge=False, show_header=self.show_header, padding=self.padding)
        for column, width in zip(columns, now, strict=True):
            theirs = self.columns[column]
            part.add_column(theirs.header, justify=theirs.justify, overflow="fold", width=width)
        rows: list[tuple[RenderableType, ...]] = list(zip(*(self.columns[i].cells for i in columns), strict=True))
        for cells, row in zip(rows, self.rows, strict=True):
            part.add_row(*cells, end_section=row.end_section)
        return part


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
