"""A report as annotations of GitHub Actions: lines on standard output that GitHub shows beside the lines of a file.

See "Workflow commands for GitHub Actions" in GitHub's documentation: ``::error file=...,line=...,title=...::message``.
"""

from __future__ import annotations

from regard.check.location import CodeLocation
from regard.check.report.lines import short_path
from regard.check.report.report import Report

__all__ = ["github_annotations"]


def github_annotations(report: Report, place: CodeLocation | None = None) -> list[str]:
    """One annotation for each cause, or one for the whole where there is none; nothing where the report is `ok`.

    Args:
        report: of a check.
        place: the line where the implementation begins, for what has no line of its own; None where it is in no file.
    """
    if report.ok:
        return []
    if report.causes:
        return [
            _command(
                "error",
                cause.location or place,
                f"{report.name}: {cause.id} (in {cause.step})",
                "\n".join([cause.message, cause.impact, *([f"write instead: {cause.fix}"] if cause.fix else [])]),
            )
            for cause in report.causes
        ]
    level = "warning" if report.verdict == "undetermined" else "error"
    message = "\n".join(report.reasons) or "\n".join(str(report).splitlines()[1:]).strip()
    return [_command(level, place, f"{report.name}: {report.verdict}", message)]


def _command(level: str, place: CodeLocation | None, title: str, message: str) -> str:
    properties = {}
    if place is not None:
        properties["file"] = short_path(place.file)
        if place.cell is None:
            properties["line"] = str(place.line)
        else:  # GitHub shows the lines of the file that holds the notebook, which are others
            title += f" (cell {place.cell}, line {place.line})"
    properties["title"] = title
    written = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{level} {written}::{_escaped(message)}"


def _escaped(text: str, signs: str = "") -> str:
    """A text without the signs that end it."""
    text = text.replace("%", "%25")  # first: the others become texts with this sign
    for sign in f"\r\n{signs}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
