"""What a check found, to be read by people and by programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Cause", "Example", "Place", "Report", "Verdict"]

Verdict = Literal["right", "right in another layout or convention", "different by design", "wrong", "undetermined"]
CODES: dict[str, int] = {"wrong": 1, "undetermined": 3}
"""Exit codes of the command line; any other verdict is 0."""


@dataclass(frozen=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int
    """Counted from 1, as editors do."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Example:
    """One step on three tokens of two numbers: the user's beside the definition's."""

    step: str
    setting: str
    """What was computed with which numbers."""
    yours: list[list[float]]
    definition: list[list[float]]

    def __str__(self) -> str:
        left, right = _lines(self.yours), _lines(self.definition)
        rows = max(len(left), len(right))
        left += [""] * (rows - len(left))
        right += [""] * (rows - len(right))
        wide = max(len("yours"), *(len(line) for line in left))
        head = f"{'yours':<{wide}}   the definition"
        return "\n".join([head, *(f"{a:<{wide}}   {b}".rstrip() for a, b in zip(left, right, strict=True))])


def _lines(table: list[list[float]]) -> list[str]:
    return [" ".join(f"{number:9.4f}" for number in row) for row in table]


@dataclass(frozen=True)
class Cause:
    """Why an implementation deviates: one that reproduces its output, or that was shown by its behaviour."""

    id: str
    """As in ``regard check --list``, and the name of its page in docs/mistakes/."""
    step: str
    """The step of the definition that it is in."""
    says: str
    """One sentence, with the number that was measured."""
    effect: str
    """What it does to a model."""
    place: Place | None = None
    """Where in the user's code, where it can be told."""
    shipped: tuple[str, ...] = ()
    """Where the same mistake was published, as owner/name#number."""


@dataclass(frozen=True)
class Report:
    """The outcome of `regard.check`."""

    name: str
    """Of the implementation."""
    verdict: Verdict
    causes: tuple[Cause, ...] = ()
    """For the verdict "wrong": what together explains the output, the first step's first."""
    ways: tuple[str, ...] = ()
    """For layouts, conventions and designs: which they are. For "undetermined": why."""
    notes: tuple[str, ...] = ()
    """What was noticed besides, and concerns no ordinary input."""
    taken: tuple[str, ...] = ()
    """What was assumed in order to call it: arguments of its constructor, shapes, what True means."""
    example: Example | None = None
    step: str | None = None
    """The first step that deviates."""

    @property
    def ok(self) -> bool:
        """Whether it is attention: right, right in another way, or different by design."""
        return self.verdict not in CODES

    @property
    def code(self) -> int:
        """The exit code: 0 where it is ok, 1 where it is wrong, 3 where that cannot be told."""
        return CODES.get(self.verdict, 0)

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> str:
        """Everything, for a program."""
        return json.dumps({**asdict(self), "ok": self.ok}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """A report that `to_json` wrote."""
        read: dict[str, Any] = json.loads(text)
        read.pop("ok")
        for name in ("ways", "notes", "taken"):
            read[name] = tuple(read[name])
        read["causes"] = tuple(_cause(each) for each in read["causes"])
        read["example"] = read["example"] and Example(**read["example"])
        return cls(**read)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.verdict}"]
        if self.step is not None:
            lines.append(f"first step that deviates: {self.step}")
        for cause in self.causes:
            lines += ["", f"{cause.id} (in {cause.step}): {cause.says}", f"  {cause.effect}"]
            if cause.place is not None:
                lines.append(f"  {cause.place}")
            if cause.shipped:
                lines.append(f"  the same shipped in {', '.join(cause.shipped)}")
        lines += _listed("", self.ways)
        if self.example is not None:
            lines += ["", f"{self.example.step}, {self.example.setting}", str(self.example)]
        lines += _listed("noticed besides", self.notes) + _listed("taken to be so", self.taken)
        return "\n".join(lines)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    return ["", *([f"{title}:"] if title else []), *(f"- {item}" for item in items)]


def _cause(read: dict[str, Any]) -> Cause:
    place = read.pop("place")
    return Cause(**{**read, "shipped": tuple(read["shipped"])}, place=place and Place(**place))
