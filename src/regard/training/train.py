"""The door: a task, data and a folder in; a trained model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError, needed
from regard.pretrained import Pretrained, load
from regard.training import checkpoint
from regard.training.callbacks import Ended, Watcher
from regard.training.checkpoint import Progress
from regard.training.config import Settings
from regard.training.data import Data
from regard.training.distributed import State, alone, together
from regard.training.run_dir import Folder
from regard.training.tasks import TASKS, Task
from regard.training.trainer import Loop

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["settings_of", "train"]

OF_THE_MODEL = frozenset({"layers", "d_model", "heads", "d_ff", "vocab_size", "image_size", "patch_size"})
"""Settings of a model that begins from nothing."""
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
        fabric: the processes, from `regard.training.distributed`, not yet launched.
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
    needed("matplotlib", "train")  # rather than at the first look
    folder, asked = Folder(Path(out)), {**(settings or {})}
    sources: dict[str, Any] = {
        "paths": [str(Path(path).absolute()) for path in paths],
        "held_out": None if held_out is None else str(Path(held_out).absolute()),
        "model": model,
    }
    told = None
    if resume and folder.begun:
        told = folder.facts()
        sources, wanted = _resumed(folder, told, task, sources, asked)
    else:
        _may_begin(folder, sources, asked)
        wanted = settings_of(kind, asked)
    fabric.launch()
    wanted.share(fabric.world_size)
    data = together(fabric, lambda: kind.data(sources["paths"], sources["held_out"]))
    learned, progress = kind(wanted), Progress()
    alone(fabric, lambda: _prepare(folder, learned, data, told, sources, command, fabric))
    try:
        pretrained, state, progress = together(fabric, lambda: _restored(folder))
        return Loop(learned, data, fabric, folder, pretrained, state, progress, watcher or Watcher()).run()
    except InputError:
        if told is None and progress.step == 0:
            alone(fabric, folder.give_up)  # so that the same command can be tried again
        raise


def settings_of(task: type[Task], asked: Mapping[str, Any]) -> Settings:
    """A task's settings, with what is asked for in place of its defaults."""
    if asked.get("noise") and "noise" not in task.defaults:
        raise InputError(f"--noise {asked['noise']} is of lm; {task.name} reads its tokens as they are")
    return Settings(**{**task.defaults, **asked})


def _may_begin(folder: Folder, sources: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse, before anything is computed, a folder that holds something, and choices that a given model leaves not."""
    if folder.begun or folder.holds_something:
        folder.claim()
    for name in OF_THE_MODEL & asked.keys() if sources["model"] is not None else ():
        raise InputError(f"--{_option(name)} is of a new model; --model {sources['model']} is as it is. Leave one out")


def _resumed(
    folder: Folder, told: Mapping[str, Any], task: str, sources: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[dict[str, Any], Settings]:
    """The sources and settings of the run in a folder. What is asked for must be what they are."""
    if told["task"] != task:
        raise InputError(f"{folder.path} holds a run of {told['task']}, not of {task}")
    way_out = (
        "a resumed run ends as it would have ended. Leave it out, or begin another from it: "
        f"--model {folder.path} --out ANOTHER"
    )
    for name, value in sources.items():
        if value and value != told[name]:
            what = "the data" if name == "paths" else f"--{_option(name)}"
            raise InputError(f"the run in {folder.path} has {what} {_said(told[name])}, not {_said(value)}: {way_out}")
    known = {field.name for field in fields(Settings)}
    kept = {name: value for name, value in told["settings"].items() if name in known}
    for name, value in asked.items():
        if name not in MAY_CHANGE and kept.get(name) != value:
            raise InputError(f"the run in {folder.path} has --{_option(name)} {kept.get(name)}, not {value}: {way_out}")
    return {name: told[name] for name in sources}, settings_of(TASKS[task], {**kept, **asked})


def _said(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) and value else str(value or "that is always there")


def _option(name: str) -> str:
    return name.replace("_", "-")


def _prepare(
    folder: Folder,
    task: Task,
    data: Data,
    told: Mapping[str, Any] | None,
    sources: Mapping[str, Any],
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
                **sources,
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
            f"the data of the run in {folder.path} has changed since ({', '.join(differs)}): a resumed run wants "
            "what it had. Begin another from it: --model and another --out"
        )
    path = checkpoint.latest(folder.path)
    if path is not None:
        progress = checkpoint.read(path)[1]
        if progress.best_step == progress.step:
            checkpoint.promote(folder.path, path)  # in case it was killed between the one and the other
        folder.forget(after=progress.step)
        return
    # Also where a process was killed before the first checkpoint: the same seed gives the same weights.
    try:
        _begin(folder, task, data, sources["model"])
    except InputError:
        if told is None:
            folder.give_up()
        raise
    folder.forget(after=0)


def _begin(folder: Folder, task: Task, data: Data, model: str | None) -> None:
    """Put the model that training begins with into the folder."""
    if model is None:
        try:
            task.begin(folder.path, data)
        except InputError:
            raise
        except (ValueError, NotImplementedError) as error:
            raise InputError(f"these settings make no model: {error}") from error
        return
    pretrained = load(model)
    if (what := task.unfit(pretrained)) is not None:
        raise InputError(f"{task.name} trains an {task.kind} that reads {task.reads}, and {model} is {what}")
    positions = (pretrained.config.decoder or pretrained.config).max_positions
    if positions is not None and positions < task.settings.context:
        raise InputError(f"--context {task.settings.context}: {model} has positions for {positions}")
    pretrained.save(folder.path)


def _restored(folder: Folder) -> tuple[Pretrained, State, Progress]:
    """Where the run goes on from."""
    path = checkpoint.latest(folder.path)
    if path is None:
        return load(folder.path), {}, Progress()
    return load(path), *checkpoint.read(path)
