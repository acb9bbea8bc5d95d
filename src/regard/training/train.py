"""The door: a task, data and a folder in; a trained model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError
from regard.pretrained import Pretrained, load
from regard.training import checkpoint
from regard.training.checkpoint import Progress
from regard.training.data import Data
from regard.training.engine import State
from regard.training.folder import Folder
from regard.training.loop import Ended, Loop, Watcher
from regard.training.settings import Settings
from regard.training.tasks import TASKS, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["settings_of", "train"]

MAY_CHANGE = frozenset({"accumulate", "patience"})
"""Settings that a resumed run may have otherwise: they change how it is computed, or when it ends, and no weight."""


def train(
    task: str,
    paths: Sequence[str | Path] = (),
    *,
    out: str | Path,
    fabric: Fabric,
    held_out: str | Path | None = None,
    model: str | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> Ended:
    """Train a transformer.

    Args:
        task: ``translate``, ``lm``, ``mlm`` or ``caption``.
        paths: the data; by default what is always there.
        out: the run's folder. `regard.load` reads its best model there.
        fabric: the processes, from `regard.training.engine`, not yet launched.
        held_out: a file of examples to judge the model by; by default every twentieth row of the data.
        model: what to go on from, by the name or folder that `regard.load` takes; by default random weights.
        resume: go on with the run that is in the folder. Without one there, begin.
        settings: of `Settings`, where they are not the task's defaults.
        command: how the run was started, to be written down.
        watcher: who is told how it goes.

    Raises:
        InputError: data, settings or a folder that cannot be used; a loss that is no number; a checkpoint that cannot
            be written.
    """
    kind = TASKS.get(task)
    if kind is None:
        raise InputError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    folder = Folder(Path(out))
    asked = {**(settings or {})}
    if resume and folder.begun:
        wanted, told = _resumed(folder, task, asked, paths)
        paths, held_out, model = told["paths"], told["held_out"], told["model"]
    else:
        _must_be_free(folder)
        wanted, told = settings_of(kind, asked), None
    wanted.share(fabric.world_size)
    fabric.launch()
    data = kind.data([Path(path).absolute() for path in paths], None if held_out is None else Path(held_out).absolute())
    learned = kind(wanted)
    failed: str | None = None
    if fabric.is_global_zero:
        try:
            _prepare(folder, learned, data, told, paths, held_out, model, command, fabric)
        except InputError as error:
            failed = str(error)
    if (failed := fabric.broadcast(failed)) is not None:
        raise InputError(failed)
    pretrained, state, progress = _restored(folder)
    return Loop(learned, data, fabric, folder, pretrained, state, progress, watcher or Watcher()).run()


def settings_of(task: type[Task], asked: Mapping[str, Any]) -> Settings:
    """A task's settings, with what is asked for in place of its defaults."""
    return Settings(**{**task.defaults, **asked})


def _must_be_free(folder: Folder) -> None:
    """Refuse a folder that holds something, before anything is computed."""
    if folder.begun or folder.holds_something:
        folder.claim()


def _resumed(
    folder: Folder, task: str, asked: Mapping[str, Any], paths: Sequence[str | Path]
) -> tuple[Settings, dict[str, Any]]:
    """The settings of the run in a folder. What is asked for must be what they are."""
    told = folder.facts()
    if told["task"] != task:
        raise InputError(f"{folder.path} holds a run of {told['task']}, not of {task}")
    if paths and [str(Path(path).absolute()) for path in paths] != told["paths"]:
        raise InputError(f"{folder.path} was trained on {told['data']['name']}; leave the data out to resume it")
    known = {field.name for field in fields(Settings)}
    kept = {name: value for name, value in told["settings"].items() if name in known}
    for name, value in asked.items():
        if name not in MAY_CHANGE and kept.get(name) != value:
            raise InputError(
                f"the run in {folder.path} has --{name.replace('_', '-')} {kept.get(name)}, not {value}: a resumed run "
                "ends as it would have ended. Leave it out, or begin another from it: --model "
                f"{folder.path} --out ANOTHER"
            )
    return Settings(**{**kept, **asked}), told


def _prepare(
    folder: Folder,
    task: Task,
    data: Data,
    told: Mapping[str, Any] | None,
    paths: Sequence[str | Path],
    held_out: str | Path | None,
    model: str | None,
    command: Sequence[str],
    fabric: Fabric,
) -> None:
    """Write down a run that begins; hold the data of one that is resumed against what it had."""
    about = {"name": data.name, "rows": data.rows, "held_out": len(data.held_out), **data.facts}
    if told is None:
        folder.claim()
        folder.begin(
            {
                "task": task.name,
                "command": list(command),
                "paths": [str(Path(path).absolute()) for path in paths],
                "held_out": None if held_out is None else str(Path(held_out).absolute()),
                "model": model,
                "settings": task.settings.to_dict(),
                "data": about,
                "processes": fabric.world_size,
                "strategy": type(fabric.strategy).__name__,
                "precision": fabric._precision.precision,
            }
        )
    elif told["data"] != about:
        differs = [name for name in about if told["data"].get(name) != about[name]]
        raise InputError(
            f"the data of the run in {folder.path} has changed since ({', '.join(differs)}): a resumed run wants what it "
            "had. Begin another from it: --model and another --out"
        )
    if checkpoint.latest(folder.path) is None:
        # Also where a process was killed before the first checkpoint: the same seed gives the same weights.
        try:
            _begin(folder, task, data, model)
        except InputError:
            folder.give_up()
            raise


def _begin(folder: Folder, task: Task, data: Data, model: str | None) -> None:
    """Put the model that training begins with into the folder."""
    if model is None:
        task.begin(folder.path, data)
        return
    pretrained = load(model)
    if pretrained.kind != task.kind or pretrained.tokenizer is None:
        what = f"of the kind {pretrained.kind}" if pretrained.kind != task.kind else "without a tokenizer"
        raise InputError(f"{task.name} trains an {task.kind} with a tokenizer; {model} is {what}")
    positions = (pretrained.config.decoder or pretrained.config).max_positions
    if positions is not None and positions < task.settings.context:
        raise InputError(f"--context {task.settings.context}: {model} has positions for {positions}")
    pretrained.save(folder.path)


def _restored(folder: Folder) -> tuple[Pretrained, State, Progress]:
    """Where the run goes on from."""
    path = checkpoint.latest(folder.path)
    if path is None:
        folder.forget(after=0)
        return load(folder.path), {}, Progress()
    state, progress = checkpoint.read(path)
    if progress.best_step == progress.step:
        checkpoint.promote(folder.path, path)  # in case it was killed between the one and the other
    folder.forget(after=progress.step)
    return load(path), state, progress
