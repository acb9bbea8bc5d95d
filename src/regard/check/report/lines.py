"""A report as lines of text: its sections, and how they are shortened to what is read at once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from regard.check.report.records import AttentionResult, FoundMistake, StepResult, StepStatus

__all__ = ["MAX_LINES", "Section", "attention_lines", "cause_lines", "fitted", "item_lines", "short_path", "step_lines"]

MAX_LINES = 40
"""Of a whole report."""
MAX_ITEM_LINES = 3
"""Of one note; a text of somebody's exception may have any number."""
LIMITS = {"attentions": 8, "causes": 3, "reasons": 6, "conventions": 6, "example": 1, "notes": 6, "assumptions": 6}
"""How many items of each section are told."""
SHORTER = (
    ("assumptions", 3),
    ("notes", 3),
    ("conventions", 3),
    ("assumptions", 1),
    ("example", 0),
    ("attentions", 4),
    ("causes", 2),
    ("reasons", 2),
    ("notes", 1),
    ("conventions", 1),
    ("causes", 1),
    ("attentions", 2),
    ("conventions", 0),
    ("assumptions", 0),
    ("notes", 0),
)
"""Of which section how many are told, one after the other, until all fits."""
MARKS: Mapping[StepStatus, str] = {
    "holds": "✓",
    "violated": "✗",
    "design": "~",
    "not exercised": "?",
    "absent": "–",
}
PLAIN_MARKS: Mapping[StepStatus, str] = {
    "holds": "ok",
    "violated": "X",
    "design": "~",
    "not exercised": "?",
    "absent": "-",
}
"""Where the stream's encoding has no such characters."""
SAID: Mapping[StepStatus, str] = {
    "holds": "holds",
    "violated": "wrong",
    "design": "otherwise by design",
    "not exercised": "not exercised",
    "absent": "there is none",
}
VERDICT_STATUS: Mapping[str, StepStatus] = {
    "wrong": "violated",
    "undetermined": "not exercised",
    "different by design": "design",
}


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    name: str
    title: str
    items: Sequence[Sequence[str]]
    """The lines of each."""

    def lines(self, limit: int | None) -> list[str]:
        """An empty line, the title and the first items; how many are left out."""
        kept = self.items if limit is None else self.items[:limit]
        lines = [line for item in kept for line in item]
        left = len(self.items) - len(kept)
        if left and self.name != "example":
            lines.append(f"- and {left} more: --json")
        if not lines or self.name in ("head", "causes", "example"):
            return lines
        return ["", *([self.title] if self.title else []), *lines]


def fitted(sections: Sequence[Section]) -> list[str]:
    """The lines of all sections; the less important ones are shortened until there are at most `MAX_LINES`."""
    limits = dict(LIMITS)

    def made() -> list[str]:
        return [line for section in sections for line in section.lines(limits.get(section.name))]

    for name, limit in SHORTER:
        if len(made()) <= MAX_LINES:
            break
        limits[name] = limit
    return made()


def item_lines(items: Sequence[str]) -> list[list[str]]:
    """Each item with a dash."""
    found = []
    for item in items:
        first, *more = item.split("\n")
        if len(more) >= MAX_ITEM_LINES:
            more = [*more[: MAX_ITEM_LINES - 2], "..."]
        found.append([f"- {first}", *more])
    return found


def short_path(file: str) -> str:
    """A path from the current folder, where it lies in it."""
    path = os.path.relpath(file)
    return file if path.startswith(os.pardir) else path


def cause_lines(cause: FoundMistake) -> list[str]:
    """A mistake: what, where, what it does and what to write."""
    lines = ["", f"{cause.id} (in {cause.step}): {cause.message}"]
    if cause.location is not None:
        lines.append(f"  {replace(cause.location, file=short_path(cause.location.file))}")
    if cause.smallest:
        lines.append(f"  smallest input found that shows it: {cause.smallest}")
    if cause.impact:
        lines.append(f"  what it does: {cause.impact}")
    if cause.fix:
        lines.append(f"  write instead: {cause.fix}")
    if cause.references:
        lines.append(f"  the same mistake in published code: {', '.join(cause.references)}")
    return lines


def step_lines(steps: Sequence[StepResult], causes: Sequence[FoundMistake]) -> list[str]:
    """The picture of the steps: a mark, the name, and what is known; a text is written once where several have it."""
    if not steps:
        return []
    marks = _marks()
    below = {cause.message: cause.id for cause in causes}
    used = [status for status in marks if any(each.status == status for each in steps)]
    lines = [f"steps ({', '.join(f'{marks[status]} {SAID[status]}' for status in used)}):"]
    wide, mark_width = max(len(each.step) for each in steps), max(len(marks[each.status]) for each in steps)
    before = None
    for each in steps:
        said = replace(each, step="")
        text = "as above" if said == before else each.text.replace("\n", " ")
        if each.status == "violated" and each.text in below:
            text = f"{below[each.text]}, see below"
        lines.append(f"  {marks[each.status]:<{mark_width}} {each.step:<{wide}}  {text}")
        before = said
    return lines


def _marks() -> Mapping[StepStatus, str]:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "".join(MARKS.values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return PLAIN_MARKS
    return MARKS


# Attentions of a model. -----------------------------------------------------------------------------------------------

NUMBER = re.compile(r"\d+")


def attention_lines(attentions: Sequence[AttentionResult]) -> list[list[str]]:
    """One line for each attention; those that differ in one number of their path are one."""
    marks = _marks()
    groups: dict[tuple[str, str, str], list[AttentionResult]] = {}
    for each in attentions:
        groups.setdefault((NUMBER.sub("#", each.path), each.verdict, each.text), []).append(each)
    lines = []
    for (_, verdict, text), several in groups.items():
        mark = marks[VERDICT_STATUS.get(verdict, "holds")]
        said = f"{verdict}: {text}" if text else verdict
        lines.append([f"  {mark} {path or 'itself'}: {said}" for path in _paths([each.path for each in several])])
    return [[line] for several in lines for line in several]


def _paths(paths: Sequence[str]) -> list[str]:
    """Paths that are alike but for their numbers, as one where a single number differs: "h.0-3.attn"."""
    numbers = [[match.group() for match in NUMBER.finditer(path)] for path in paths]
    differ = [place for place in range(len(numbers[0])) if len({each[place] for each in numbers}) > 1]
    if len(differ) != 1:
        return list(dict.fromkeys(paths))
    values = [int(each[differ[0]]) for each in numbers]
    at = list(NUMBER.finditer(paths[0]))[differ[0]]
    return [f"{paths[0][: at.start()]}{_ranges(values)}{paths[0][at.end() :]}"]


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers, neighbours as a range: "0-3,5"."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ",".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in ranges)
