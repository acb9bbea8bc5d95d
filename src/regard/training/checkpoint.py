"""Checkpoints of a run: an atomic write of the model, the optimizer state and the progress."""

from __future__ import annotations

import json
import math
import re
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from regard.errors import InputError
from regard.files import DRAFT, atomic_path, fsync, remove_drafts
from regard.pretrained import Pretrained
from regard.pretrained.checkpoint import read_json_object
from regard.training.distributed import OptimizerState

SUBDIR, OPTIMIZER, PROGRESS = "checkpoints", "optimizer.safetensors", "progress.json"
NAME = re.compile("step-[0-9]+", re.ASCII)
MAX_CHECKPOINTS = 2
"""Older checkpoints are deleted when a new one is written."""


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Updates done."""
    epoch: int = 0
    """The number of the current pass over the data, from 0."""
    num_batches: int = 0
    """Batches of that pass that are done."""
    best_loss: float | None = None
    """The lowest eval loss."""
    best_step: int = 0
    """The update with the lowest eval loss."""
    wait_count: int = 0
    """Evaluations since then."""
    num_tokens: int = 0
    """Tokens that went through the model."""
    seconds: float = 0.0
    """Time of the updates, over all sessions."""
    num_skipped: int = 0
    """Rows of one pass over the data that are skipped for their length."""


def write(run_dir: Path, model: Pretrained, optimizer: OptimizerState, progress: Progress) -> Path:
    """Write a checkpoint of a run: a model that `regard.load` reads, the optimizer state and the progress.

    Raises:
        InputError: the checkpoint cannot be written; earlier checkpoints are unchanged.
    """
    path = run_dir / SUBDIR / f"step-{progress.step:06d}"
    try:
        remove_drafts(run_dir / SUBDIR)
        with atomic_path(path) as draft:
            model.save(draft)
            save_file(optimizer, draft / OPTIMIZER)
            (draft / PROGRESS).write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
            fsync(draft)
            if path.exists():  # where a run is stopped right after an evaluation
                _remove(path)
    except (OSError, SafetensorError, InputError) as error:
        previous = latest(run_dir)
        state = f"the last checkpoint is {previous}" if previous else "there is no checkpoint yet"
        raise InputError(
            f"the checkpoint of step {progress.step} cannot be written: {error}. {state}; free some space, then "
            "continue with resume=True"
        ) from error
    for old in _all_checkpoints(run_dir)[:-MAX_CHECKPOINTS]:
        _remove(old)
    return path


def promote(run_dir: Path, checkpoint: Path) -> None:
    """Copy the weights of a checkpoint, one file or several, to the run's directory, which `regard.load` reads."""
    files = [path for path in sorted(checkpoint.glob("*.safetensors")) if path.name != OPTIMIZER]
    try:
        with ExitStack() as drafts:  # at its end all files are written, and each replaces the one of its name
            for file in files:
                shutil.copyfile(file, drafts.enter_context(atomic_path(run_dir / file.name)))
    except OSError as error:
        names = ", ".join(file.name for file in files)
        raise InputError(f"{names} cannot be written in {run_dir}: {error}; the weights are in {checkpoint}") from error


def latest(run_dir: Path) -> Path | None:
    """The last checkpoint of a run."""
    return next(iter(_all_checkpoints(run_dir)[::-1]), None)


def read(checkpoint: Path) -> tuple[OptimizerState, Progress]:
    """The optimizer state and the progress of a checkpoint. Its model is read by `regard.load`.

    Raises:
        InputError: a file is missing or damaged.
    """
    facts = read_json_object(checkpoint / PROGRESS)
    try:
        progress = Progress(**facts)
        if wrong := [name for name, value in asdict(progress).items() if not _is_progress(name, value)]:
            raise ValueError(f"{PROGRESS} has {wrong[0]} {facts[wrong[0]]!r}")
        return load_file(checkpoint / OPTIMIZER), progress
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise InputError(
            f"{checkpoint} is damaged: {error}. Delete it, and resume=True continues from the one before"
        ) from error


def _is_progress(name: str, value: object) -> bool:
    """Whether a field of `Progress` has a value that it can have."""
    if name == "best_loss":
        return value is None or (type(value) in (int, float) and not math.isnan(float(str(value))))
    types = (int, float) if name == "seconds" else (int,)
    return type(value) in types and 0 <= float(str(value)) < math.inf


def _remove(checkpoint: Path) -> None:
    """Delete a checkpoint under another name: a partial checkpoint must never have the name of a whole one."""
    deleted = checkpoint.with_name(f"{DRAFT}gone-{checkpoint.name}")
    checkpoint.rename(deleted)
    shutil.rmtree(deleted, ignore_errors=True)


def _all_checkpoints(run_dir: Path) -> list[Path]:
    paths = [path for path in (run_dir / SUBDIR).glob("step-*") if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")))
