"""The directory of a run: its configuration, its metrics, its plots."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import regard
from regard.errors import InputError, import_optional
from regard.files import DRAFT, error_reason, publish, remove_drafts, try_lock, write_text
from regard.lens import Recording
from regard.pretrained.checkpoint import read_json_object

RUN, METRICS, LOSS_PLOT, ATTENTION_DIR = "run.json", "metrics.jsonl", "loss.png", "attention"
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "datasets", "lightning-fabric", "babel", "scikit-learn")


@dataclass(frozen=True)
class RunDir:
    """A run on disk.

    ``run.json`` has what is needed to repeat the run, ``metrics.jsonl`` a line for each update and each evaluation,
    ``checkpoints/`` the states from which the run can be resumed, ``loss.png`` and ``attention/`` its plots;
    ``config.json``, ``tokenizer.json``, ``model.safetensors`` and the files beside them are its best model so far,
    which `regard.load` and `transformers` read.
    """

    path: Path

    @property
    def has_run(self) -> bool:
        """Whether the directory has a run."""
        return (self.path / RUN).is_file()

    @property
    def is_occupied(self) -> bool:
        """Whether the path has any file; drafts of a killed run do not count."""
        return self.path.exists() and (
            not self.path.is_dir() or any(not file.name.startswith(DRAFT) for file in self.path.iterdir())
        )

    def create(self) -> None:
        """Make the directory of a new run.

        Raises:
            InputError: the directory has a run, or something else.
        """
        if self.has_run:
            raise InputError(
                f"{self.path} holds a run already. Continue it with resume=True, or name another folder: nothing is "
                "overwritten"
            )
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: a run needs a folder")
        if self.is_occupied:
            raise InputError(f"{self.path} is not empty: a run needs an empty folder, or one that does not exist yet")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {error.strerror or error}") from error

    def write_run(self, facts: Mapping[str, Any]) -> None:
        """Write ``run.json``. From now on the run can be resumed.

        Raises:
            InputError: it cannot be written, or another process has just begun a run here.
        """
        run = {**facts, "versions": versions(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        draft = self.path / f"{DRAFT}{uuid4().hex}"
        try:
            draft.write_text(json.dumps(run, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            publish(draft, self.path / RUN)
        except FileExistsError:
            draft.unlink()
            raise self._busy() from None
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise InputError(f"{self.path} cannot be written: {error_reason(error)}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from this run until the block ends, or this process does, in whatever way.

        Raises:
            InputError: another process trains it.
        """
        with FileIO(self.path / RUN) as stream:
            try:
                has_lock = try_lock(stream)
            except InputError:  # the file system has no locks, which is no reason not to train
                has_lock = True
            if not has_lock:
                raise self._busy()
            yield

    def clear(self) -> None:
        """Delete everything that was written since `create`, of a run that could not start."""
        for file in self.path.iterdir():
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)

    def read_run(self) -> dict[str, Any]:
        """The content of ``run.json``.

        Raises:
            InputError: the file is damaged, or of another program.
        """
        facts = read_json_object(self.path / RUN)
        if any(name not in facts for name in ("task", "paths", "eval_file", "model", "config", "data")):
            raise InputError(f"{self.path / RUN} was not written by regard train: name another folder")
        return facts

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            raise InputError(f"{self.path / METRICS} cannot be written: {error.strerror or error}") from error

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics, without an incomplete last line."""
        path = self.path / METRICS
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                yield json.loads(line)
            except ValueError:
                return

    def truncate_metrics(self, last_step: int) -> None:
        """Delete the metrics of the updates after a step, which a resumed run repeats."""
        lines = [line for line in self.metrics() if line["step"] <= last_step]
        self._replace(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def plot(self, recording: Recording, step: int) -> None:
        """Draw the losses so far, save a recording and draw its attention.

        Args:
            recording: of one eval row, the same each time; of an encoder-decoder the cross-attention is drawn.
            step: the number of updates done.
        """
        import_optional("matplotlib", "train")
        from regard.views.figures.losses import plot_losses
        from regard.views.figures.maps import plot_heads

        plot_losses(list(self.metrics())).savefig(self.path / LOSS_PLOT)
        directory = self.path / ATTENTION_DIR
        directory.mkdir(exist_ok=True)
        recording.save(directory / f"step-{step:06d}.safetensors")
        has_cross = any(recording.entry(path).kind == "cross" for path in recording)
        plot_heads(recording, "cross" if has_cross else None).savefig(directory / f"step-{step:06d}.png")

    def _busy(self) -> InputError:
        return InputError(f"another process trains in {self.path} now: wait for its end, or name another folder")

    def _replace(self, name: str, text: str) -> None:
        remove_drafts(self.path)
        write_text(text, self.path / name)


def versions() -> dict[str, str]:
    """The versions of Python and of every library that affects the numbers."""
    found = {"regard": regard.__version__, "python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
