"""The folder of a run: what it was asked for, and what it measured."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import regard
from regard.errors import InputError
from regard.pretrained.checkpoint import read_json_object

__all__ = ["Folder", "versions"]

RUN, METRICS = "run.json", "metrics.jsonl"
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "datasets", "lightning-fabric", "babel", "scikit-learn")


@dataclass(frozen=True)
class Folder:
    """A run on disk.

    ``run.json`` is what it takes to repeat it, ``metrics.jsonl`` a line for each update and each look at the held-out
    examples, ``checkpoints/`` where it goes on from; ``config.json``, ``tokenizer.json`` and ``model.safetensors`` are
    its best model so far, which `regard.load` reads.
    """

    path: Path

    @property
    def begun(self) -> bool:
        """Whether there is a run."""
        return (self.path / RUN).is_file()

    @property
    def holds_something(self) -> bool:
        """Whether anything else is in it; what a killed run was about to write does not count."""
        return self.path.exists() and (
            not self.path.is_dir() or any(not file.name.startswith(".draft-") for file in self.path.iterdir())
        )

    def claim(self) -> None:
        """Make the folder, for a run that begins.

        Raises:
            InputError: there is a run, or something else, in it.
        """
        if self.begun:
            raise InputError(
                f"{self.path} holds a run already. Go on with it by --resume, or name another folder: nothing is "
                "overwritten"
            )
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: a run wants a folder")
        if self.holds_something:
            raise InputError(f"{self.path} is not empty: a run wants a folder of its own, or one that is not there yet")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {error.strerror or error}") from error

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write down what the run is. From now on it can be resumed."""
        about = {**facts, "versions": versions(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        self._replace(RUN, json.dumps(about, indent=2, ensure_ascii=False) + "\n")

    def give_up(self) -> None:
        """Take back all that was written since `claim`, for a run that could not begin."""
        for file in self.path.iterdir():
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)

    def facts(self) -> dict[str, Any]:
        """What was written down.

        Raises:
            InputError: the file is damaged, or of something else.
        """
        facts = read_json_object(self.path / RUN)
        if any(name not in facts for name in ("task", "paths", "held_out", "model", "settings", "data")):
            raise InputError(f"{self.path / RUN} was not written by regard train: name another folder")
        return facts

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")
        except OSError as error:
            raise InputError(f"{self.path / METRICS} cannot be written: {error.strerror or error}") from error

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Those lines; a last one that was cut off is left out."""
        path = self.path / METRICS
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                yield json.loads(line)
            except ValueError:
                return

    def forget(self, after: int) -> None:
        """Drop the metrics of updates that a resumed run does again."""
        kept = [facts for facts in self.metrics() if facts["step"] <= after]
        self._replace(METRICS, "".join(json.dumps(facts) + "\n" for facts in kept))

    def _replace(self, name: str, text: str) -> None:
        draft = self.path / f".draft-{name}"
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, self.path / name)
        except OSError as error:
            raise InputError(f"{self.path / name} cannot be written: {error.strerror or error}") from error


def versions() -> dict[str, str]:
    """Of everything that has a say in the numbers."""
    found = {"regard": regard.__version__, "python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
