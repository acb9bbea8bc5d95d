"""`train`: a task, data and a directory in; a trained model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError, import_optional
from regard.pretrained import Pretrained, load
from regard.training import checkpoint
from regard.training.callbacks import Callback, TrainResult
from regard.training.checkpoint import Progress
from regard.training.config import MODEL_FIELDS, TrainingConfig, build_config
from regard.training.data import TrainingData
from regard.training.distributed import OptimizerState, all_ranks, create_fabric, rank_zero
from regard.training.run_dir import RunDir
from regard.training.tasks import TASKS, Task
from regard.training.trainer import Trainer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RESUME_FIELDS = frozenset({"gradient_accumulation_steps", "patience"})
"""Fields that may differ when a run is resumed: they change how it is computed, or when it ends, and no weight."""


def train(
    task: str,
    data: Sequence[str | Path] = (),
    *,
    out: str | Path,
    eval_file: str | Path | None = None,
    model: str | Path | None = None,
    resume: bool = False,
    devices: int | None = None,
    nodes: int = 1,
    strategy: str = "auto",
    precision: str = "32-true",
    accelerator: str = "auto",
    callback: Callback | None = None,
    command: Sequence[str] = (),
    **config: Any,
) -> TrainResult:
    """Train a transformer, as the command ``regard train`` does.

    >>> import regard
    >>> result = regard.train("translate", ["pairs.tsv"], out="en-de", max_steps=2_000, d_model=256)  # doctest: +SKIP
    >>> result.metrics["eval_loss"], result.progress.best_step  # doctest: +SKIP
    >>> regard.load("en-de")  # doctest: +SKIP

    Args:
        task: ``translate``, ``lm``, ``mlm`` or ``caption``.
        data: files or globs; by default the built-in data of the task.
        out: the directory of the run. `regard.load` reads its best model there.
        eval_file: examples for the evaluations; by default every twentieth row of the data.
        model: the name or folder of a model to start from, as `regard.load` takes it; by default random weights.
        resume: continue the run of the directory. Without a run there, start one.
        devices: processes on each machine; by default one for each GPU, or one.
        nodes: machines.
        strategy: ``ddp``: every process has all weights; ``fsdp``: each has its share of them; ``auto``: none for one
            process and ddp for more.
        precision: of the arithmetic: ``32-true``, ``bf16-mixed`` or ``bf16-true``.
        accelerator: ``cpu``, ``cuda``, ... of Lightning Fabric; ``auto`` takes the best of this machine.
        callback: is called during the run, and can stop it.
        command: the command line of the run, which ``run.json`` stores.
        **config: fields of `TrainingConfig` that differ from the task's defaults, such as ``max_steps``,
            ``learning_rate``, ``num_layers``, ``max_length``.

    Returns:
        How the run ended, the step and the loss of the best model, and the metrics of the last evaluation.

    Raises:
        InputError: data, a configuration, hardware or a directory that cannot be used; a loss that is not finite; a
            checkpoint that cannot be written.
        TypeError: a field that `TrainingConfig` does not have.
    """
    data = [data] if isinstance(data, str | Path) else list(data)
    if not resume:
        build_config(task, config)  # refused before the processes are prepared
    fabric = create_fabric(
        devices=devices, nodes=nodes, strategy=strategy, precision=precision, accelerator=accelerator
    )
    sources = {
        "paths": [str(Path(path).absolute()) for path in data],
        "eval_file": None if eval_file is None else str(Path(eval_file).absolute()),
        "model": None if model is None else str(model),
    }
    return _train(task, sources, RunDir(Path(out)), fabric, resume, config, command, callback or Callback())


def _train(
    task: str,
    sources: dict[str, Any],
    run_dir: RunDir,
    fabric: Fabric,
    resume: bool,
    overrides: Mapping[str, Any],
    command: Sequence[str],
    callback: Callback,
) -> TrainResult:
    """`train` on these processes, which are not launched yet."""
    import_optional("matplotlib", "train")  # here, and not at the first evaluation
    previous = None
    if resume and run_dir.has_run:
        previous = run_dir.read_run()
        sources, config = _resumed(run_dir, previous, task, sources, overrides)
    else:
        _validate_new_run(run_dir, sources, overrides)
        config = build_config(task, overrides)
    task_class = TASKS[task]
    fabric.launch()
    config.micro_batch_size(fabric.world_size)
    data = all_ranks(fabric, lambda: task_class.load_data(sources["paths"], sources["eval_file"]))
    trained_task, progress = task_class(config), Progress()
    with ExitStack() as lock:
        rank_zero(fabric, lambda: _prepare(run_dir, lock, trained_task, data, previous, sources, command, fabric))
        try:
            pretrained, state, progress = all_ranks(fabric, lambda: _load_state(run_dir))
            trainer = Trainer(trained_task, data, fabric, run_dir, pretrained, state, progress, callback)
            return trainer.run()
        except InputError:
            if previous is None and progress.step == 0:
                rank_zero(fabric, run_dir.clear)  # so that the same command can be tried again
            raise


def _validate_new_run(run_dir: RunDir, sources: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Refuse, before anything is computed, an occupied directory, and options that contradict a given model."""
    if run_dir.has_run or run_dir.is_occupied:
        run_dir.create()
    for name in MODEL_FIELDS & overrides.keys() if sources["model"] is not None else ():
        raise InputError(
            f"{name}={overrides[name]} is an option of a new model, and model={sources['model']} cannot be changed. "
            "Leave one of them out"
        )


def _resumed(
    run_dir: RunDir,
    previous: Mapping[str, Any],
    task: str,
    sources: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> tuple[dict[str, Any], TrainingConfig]:
    """The sources and the configuration of the run in a directory. Options that are given must equal them."""
    if previous["task"] != task:
        raise InputError(f"{run_dir.path} holds a run of {previous['task']}, not of {task}")
    hint = (
        "a resumed run ends as it would have ended without the stop. Leave the option out, or start another run from "
        f"this one: model={run_dir.path} out=ANOTHER"
    )
    for name, value in sources.items():
        if value and value != previous[name]:
            before, now = _source_text(name, previous[name]), _source_text(name, value)
            raise InputError(f"the run in {run_dir.path} began with {before}, not with {now}: {hint}")
    names = {field.name for field in fields(TrainingConfig)}
    config = {name: value for name, value in previous["config"].items() if name in names}
    for name, value in overrides.items():
        if name not in RESUME_FIELDS and config.get(name) != value:
            raise InputError(f"the run in {run_dir.path} has {name}={config.get(name)}, not {value}: {hint}")
    return {name: previous[name] for name in sources}, build_config(task, {**config, **overrides})


def _source_text(name: str, value: Any) -> str:
    if name == "paths":
        return f"the data {' '.join(value)}" if value else "the built-in data"
    return f"{name}={value}" if value else f"no {name}"


def _prepare(
    run_dir: RunDir,
    lock: ExitStack,
    task: Task,
    data: TrainingData,
    previous: Mapping[str, Any] | None,
    sources: Mapping[str, Any],
    command: Sequence[str],
    fabric: Fabric,
) -> None:
    """Write ``run.json`` of a new run and lock it; compare the data of a resumed run with what it had."""
    if previous is not None:
        lock.enter_context(run_dir.locked())
    data_facts = {"name": data.name, "num_rows": data.num_rows, "num_eval_rows": len(data.eval_rows), **data.facts}
    if previous is None:
        run_dir.create()
        run_dir.write_run(
            {
                "task": task.name,
                "command": list(command),
                **sources,
                "config": task.config.to_dict(),
                "data": data_facts,
                "processes": fabric.world_size,
                "strategy": type(fabric.strategy).__name__,
                "precision": fabric._precision.precision,
            }
        )
        lock.enter_context(run_dir.locked())
    elif previous["data"] != data_facts:
        changed = [name for name in data_facts if previous["data"].get(name) != data_facts[name]]
        raise InputError(
            f"the data of the run in {run_dir.path} has changed since ({', '.join(changed)}): a resumed run needs "
            f"the same data. Start another run from this one: model={run_dir.path} out=ANOTHER"
        )
    path = checkpoint.latest(run_dir.path)
    if path is not None:
        progress = checkpoint.read(path)[1]
        if progress.best_step == progress.step:
            checkpoint.promote(run_dir.path, path)  # the run may have been killed before it did so
        run_dir.truncate_metrics(progress.step)
        return
    # Also where a process was killed before the first checkpoint: the same seed gives the same weights.
    try:
        _init_model(run_dir, task, data, sources["model"])
    except InputError:
        if previous is None:
            run_dir.clear()
        raise
    run_dir.truncate_metrics(0)


def _init_model(run_dir: RunDir, task: Task, data: TrainingData, model: str | None) -> None:
    """Write the model that training starts from."""
    if model is None:
        try:
            task.init_model(run_dir.path, data)
        except InputError:
            raise
        except (ValueError, NotImplementedError) as error:
            raise InputError(f"no model has these options: {error}") from error
        return
    pretrained = load(model)
    if (reason := task.incompatibility(pretrained)) is not None:
        raise InputError(
            f"{task.name} needs a model of the kind {task.kind} that reads {task.modality}, and {model} {reason}"
        )
    max_positions = (pretrained.config.decoder or pretrained.config).max_positions
    if max_positions is not None and max_positions < task.config.max_length:
        raise InputError(f"max_length={task.config.max_length}: {model} has positions for {max_positions}")
    pretrained.save(run_dir.path)


def _load_state(run_dir: RunDir) -> tuple[Pretrained, OptimizerState, Progress]:
    """The model, the optimizer state and the progress that the run continues from."""
    path = checkpoint.latest(run_dir.path)
    if path is None:
        return load(run_dir.path), {}, Progress()
    return load(path), *checkpoint.read(path)
