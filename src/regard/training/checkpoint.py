"""A run's state on disk: written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from regard.errors import InputError
from regard.pretrained import Pretrained
from regard.pretrained.checkpoint import read_json_object
from regard.pretrained.hub import WEIGHTS_FILE
from regard.training.distributed import State

__all__ = ["KEPT", "Progress", "latest", "promote", "read", "write"]

FOLDER, OPTIMIZER, PROGRESS = "checkpoints", "optimizer.safetensors", "progress.json"
KEPT = 2
"""So many checkpoints stay; older ones go when a new one is there."""


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Updates done."""
    epoch: int = 0
    """Which pass over the data it is in."""
    batches: int = 0
    """Batches of that pass done."""
    best: float | None = None
    """The lowest held-out loss."""
    best_step: int = 0
    """When that was."""
    waited: int = 0
    """Looks at the held-out examples since."""
    tokens: int = 0
    """Tokens that went through the model."""
    seconds: float = 0.0
    """What the updates took, all sessions together."""
    left_out: int = 0
    """Rows of a pass over the data that were left out for their length."""


def write(folder: Path, model: Pretrained, optimizer: State, progress: Progress) -> Path:
    """Write a checkpoint of a run: a model that `regard.load` reads, and what training needs beside it.

    Raises:
        InputError: it cannot be written; those that were there are as before.
    """
    path = folder / FOLDER / f"step-{progress.step:06d}"
    draft = folder / FOLDER / f".draft-{progress.step:06d}"
    try:
        for stale in (folder / FOLDER).glob(".draft-*"):  # of a session that was killed
            shutil.rmtree(stale, ignore_errors=True)
        model.save(draft)
        save_file(optimizer, draft / OPTIMIZER)
        (draft / PROGRESS).write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
        for file in (OPTIMIZER, PROGRESS):
            with (draft / file).open("rb") as written:
                os.fsync(written.fileno())
        if path.exists():  # where somebody wants to leave right after a look
            _take_away(path)
        draft.rename(path)
    except (OSError, SafetensorError, InputError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        before = latest(folder)
        kept = f"the last checkpoint is {before}" if before else "there is no checkpoint yet"
        raise InputError(
            f"the checkpoint of step {progress.step} cannot be written: {error}. {kept}; make room and go on with "
            "--resume"
        ) from error
    for old in _all(folder)[:-KEPT]:
        _take_away(old)
    return path


def promote(folder: Path, checkpoint: Path) -> None:
    """Make a checkpoint's weights those of the run's own folder, which `regard.load` reads."""
    draft = folder / f".draft-{WEIGHTS_FILE}"
    try:
        shutil.copyfile(checkpoint / WEIGHTS_FILE, draft)
        os.replace(draft, folder / WEIGHTS_FILE)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise InputError(
            f"{folder / WEIGHTS_FILE} cannot be written: {error}; the weights are in {checkpoint}"
        ) from error


def latest(folder: Path) -> Path | None:
    """The last checkpoint of a run."""
    return next(iter(_all(folder)[::-1]), None)


def read(checkpoint: Path) -> tuple[State, Progress]:
    """What the optimizer remembers, and how far the run was. The model is read by `regard.load`.

    Raises:
        InputError: a file is missing or damaged.
    """
    told = read_json_object(checkpoint / PROGRESS)
    try:
        return load_file(checkpoint / OPTIMIZER), Progress(**told)
    except (OSError, SafetensorError, TypeError) as error:
        raise InputError(
            f"{checkpoint} is damaged: {error}. Take it away, and --resume goes on from the one before"
        ) from error


def _take_away(checkpoint: Path) -> None:
    """Half of a checkpoint must never bear its name."""
    gone = checkpoint.with_name(f".draft-gone-{checkpoint.name}")
    checkpoint.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _all(folder: Path) -> list[Path]:
    found = (folder / FOLDER).glob("step-*")
    return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name.removeprefix("step-")))
