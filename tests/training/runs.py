"""Runs that take a second or two, in this process or in a forked one that starts at once."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import torch
from data_files import jsonl, tsv
from PIL import Image
from safetensors.torch import load_file

from regard.training.callbacks import Callback, TrainResult
from regard.training.distributed import create_fabric
from regard.training.train import train

TINY: dict[str, Any] = {
    "num_layers": 1,
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 32,
    "max_length": 16,
    "vocab_size": 280,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "max_steps": 10,
    "eval_steps": 5,
    "patience": None,
}


PRELOADED = [
    *("runs", "regard.cli", "regard.training.train", "regard.training.console", "regard.views.figures.maps"),
    *("datasets", "lightning_fabric", "matplotlib.backends.backend_agg", "torch.distributed.fsdp", "torch.optim"),
    *("torch._dynamo", "rich.progress"),
]
"""The imports of a run that take longest."""


def write_pairs(path: Path, rows: int = 200) -> Path:
    """Lower-case letters, and the same in upper case."""
    rng = random.Random(0)
    sources = dict.fromkeys("".join(rng.choices("abcdef", k=rng.randint(2, 6))) for _ in range(2 * rows))
    return tsv(path, [(source, source.upper()) for source in list(sources)[:rows]])


def write_texts(path: Path, rows: int = 120) -> Path:
    """Sentences of one pattern."""
    rng = random.Random(0)
    names = ("river", "bank", "Ufer", "día", "мост")
    sentences = [
        f"the {rng.choice(names)} saw the {rng.choice(names)}, {rng.randint(0, 99)} times" for _ in range(rows)
    ]
    return jsonl(path, [{"text": text} for text in sentences])


def write_images(folder: Path, rows: int = 60) -> Path:
    """Images of 8 x 6 with a bright half, and which half that is."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["file_name,text"]
    for i in range(rows):
        image = rng.integers(0, 90, (6, 8), dtype=np.uint8)
        image[:, slice(0, 4) if i % 3 else slice(4, 8)] += 150
        Image.fromarray(image).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'left' if i % 3 else 'right'}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def write(task: str, folder: Path) -> Path:
    """Data for a task."""
    if task == "translate":
        return write_pairs(folder / "pairs.tsv")
    return write_images(folder / "images") if task == "caption" else write_texts(folder / "texts.jsonl")


def run(
    task: str,
    paths: Path | list[Path],
    out: Path,
    *,
    eval_file: Path | None = None,
    model: str | Path | None = None,
    resume: bool = False,
    callback: Callback | None = None,
    checked: bool = False,
    **overrides: Any,
) -> TrainResult:
    """A tiny run in this process, without the shape checks, which take most of the time."""
    overrides = {name: value for name, value in {**TINY, **overrides}.items() if value is not None}
    if model is not None:
        model_fields = ("num_layers", "d_model", "num_heads", "d_ff", "vocab_size")
        overrides = {name: value for name, value in overrides.items() if name not in model_fields}
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", not checked)
    try:
        return _train(task, paths, out, eval_file, model, resume, overrides, callback)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _train(task, paths, out, eval_file, model, resume, overrides, callback) -> TrainResult:
    return train(
        task,
        paths if isinstance(paths, list) else [paths],
        out=out,
        fabric=create_fabric(accelerator="cpu"),
        eval_file=eval_file,
        model=None if model is None else str(model),
        resume=resume,
        overrides=overrides,
        callback=callback,
    )


def options(**overrides: Any) -> list[str]:
    """The options of such a run on the command line."""
    overrides = {name: value for name, value in {**TINY, **overrides}.items() if value is not None}
    return [part for name, value in overrides.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of a model."""
    return load_file(folder / "model.safetensors")


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether weights are equal, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without the seconds."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def losses(folder: Path) -> list[float]:
    """The losses of the updates, and the eval losses between them."""
    return [line.get("loss", line.get("eval_loss")) for line in metrics(folder)]


class Stop(Callback):
    """Stops the run after an update."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.last_step = 0

    def on_update_end(self, progress: Any, loss: float) -> None:
        self.last_step = progress.step

    def should_stop(self) -> bool:
        return self.last_step >= self.step


def start_command(
    *arguments: object, log: Path, limit: int | None = None, missing: str | None = None, **environment: str
) -> Any:
    """``regard`` with arguments, in a process of its own, copied from one that has imported everything.

    Args:
        arguments: of the command.
        log: where standard output and standard error go.
        limit: of the bytes of any file that it writes; a write beyond it fails as on a full disk.
        missing: a library that the process cannot import.
        environment: variables.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    texts = [str(argument) for argument in arguments]
    process = context.Process(target=_run_command, args=(texts, str(log), limit, missing, environment))
    process.start()
    return process


def _run_command(
    arguments: list[str], log: str, limit: int | None, missing: str | None, environment: dict[str, str]
) -> None:
    torch.set_num_threads(1)
    os.environ.update({"HF_HUB_OFFLINE": "1", **environment})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    if limit is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if missing is not None:
        sys.modules[missing] = None  # type: ignore[assignment]
    from regard.cli import main

    sys.argv = ["regard", *arguments]
    with contextlib.suppress(BrokenPipeError):
        main()


def wait_for_exit(process: Any, seconds: float = 300) -> int:
    """The exit code of a process, which has this much time."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"still running after {seconds} s")
    return int(process.exitcode)
