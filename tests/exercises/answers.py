"""Answers to the exercises: right ones in several styles, and wrong ones, each with the cause that has to be named.

A wrong answer is the first right one with one edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
from regard.exercises import find
from regard.exercises.exercise import Exercise


@dataclass(frozen=True)
class Wrong:
    """A right answer with an edit."""

    cause: str
    """The id of the mistake."""
    old: str
    new: str
    line: str = ""
    """The learner's line that has to be shown; by default one that the edit made."""


@dataclass(frozen=True)
class Answers:
    """What learners wrote for one exercise."""

    slug: str
    right: tuple[str, ...]
    wrong: tuple[Wrong, ...]

    @property
    def exercise(self) -> Exercise:
        return find(self.slug)

    def mistaken(self, wrong: Wrong) -> str:
        """The code of a wrong answer."""
        assert wrong.old in self.right[0], f"{self.slug}: {wrong.old!r} is not in the right answer"
        return self.right[0].replace(wrong.old, wrong.new)

    def edited_lines(self, wrong: Wrong) -> list[str]:
        """The lines that the right answer has not."""
        return [line for line in _stripped(self.mistaken(wrong)) if line not in _stripped(self.right[0])]


def _stripped(code: str) -> list[str]:
    return [line.strip() for line in code.split("\n")]


def filled_in(exercise: Exercise, code: str) -> str:
    """The text of an exercise's file with a body in the place of the stub's line, without statement and numbers."""
    body = "\n".join(line for line in code.strip("\n").split("\n"))
    indent = "        " if exercise.stub.startswith("class ") else "    "
    lines = "\n".join(f"{indent}{line}" if line else "" for line in body.split("\n"))
    stub = exercise.stub.replace(f'{indent}raise NotImplementedError("your code here")', lines)
    header = "import math\n\nimport regard\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
    return f"# regard exercise {exercise.code}\n{header}\n\n{stub}\n"


def learner_of(exercise: Exercise, code: str, folder: Path) -> tuple[Any, str]:
    """What a learner wrote, made in this process, and its file."""
    path = folder / exercise.file_name
    path.write_text(filled_in(exercise, code))
    names: dict[str, Any] = {"torch": torch, "nn": nn, "regard": regard}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names[exercise.name], str(path)
