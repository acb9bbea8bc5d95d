"""`InterventionReport`: what each edit changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.lens.interventions.edits import Edit, ScoreEdit


@dataclass(frozen=True)
class EditReport:
    """What one edit changed."""

    path: str
    """The path of the attention, with the selection of batch rows and heads."""
    edit: str
    """The edit as it was written."""
    calls: int
    """The number of attention calls that it met: one a forward pass, or one a step of a generation."""
    heads: int
    """The number of heads that it changed."""
    rows: int
    """The number of rows of the output that it changed: queries of all batch rows and calls."""
    largest_change: float
    """The largest change of a number of the attention's output, by all edits of these rows."""
    error: float | None
    """The largest difference of compared rows from the edited attention by the definition in float64, as a share of
    the largest output. None where rows are replaced and nothing is computed, or where nothing was compared."""


@dataclass(frozen=True)
class InterventionReport:
    """What every edit of an intervention changed; ``print(edit.report())`` is a table."""

    edits: tuple[EditReport, ...]
    notes: tuple[str, ...]

    @classmethod
    def from_edits(cls, edits: Sequence[Edit], notes: Sequence[str], *, verified: bool) -> InterventionReport:
        """The report of some edits.

        Args:
            edits: the edits.
            notes: on the model.
            verified: whether edited rows were compared with the definition.
        """
        reports = (
            EditReport(
                edit.path + edit.place,
                edit.description,
                edit.calls,
                edit.num_heads,
                edit.rows,
                edit.largest_change,
                edit.error if verified and isinstance(edit, ScoreEdit) and edit.calls else None,
            )
            for edit in edits
        )
        return cls(tuple(reports), tuple(notes))

    def __str__(self) -> str:
        header = ("attention", "edit", "calls", "heads", "rows", "largest change", "error")
        lines: list[tuple[str, ...]] = [header]
        for edit in self.edits:
            error = "" if edit.error is None else f"{edit.error:.1e}"
            counts = (f"{n:,}" for n in (edit.calls, edit.heads, edit.rows))
            lines.append((edit.path, edit.edit, *counts, f"{edit.largest_change:.3g}", error))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = []
        for line in lines:
            cells = [
                cell.ljust(w) if n < 2 else cell.rjust(w) for n, (cell, w) in enumerate(zip(line, widths, strict=True))
            ]
            rows.append("  ".join(cells).rstrip())
        return "\n".join([*rows, *(f"note: {note}" for note in self.notes)])
