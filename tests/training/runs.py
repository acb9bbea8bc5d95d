"""Small data of every task, runs of a second on it, and what a run leaves on disk."""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

import regard
from regard.training.callbacks import Callback, TrainResult
from regard.training.config import MODEL_FIELDS, build_config
from regard.training.loss_module import LossModule
from regard.training.tasks import TASKS, Task
from regard.training.train import train

TINY: dict[str, Any] = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "max_length": 16, "vocab_size": 280}
TINY |= {"batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 2, "max_steps": 6, "eval_steps": 3}
"""An evaluation, which draws two plots, takes longer than ten updates."""

SMALL_PLOTS = {"savefig.dpi": 25, "xtick.labelbottom": False, "ytick.labelleft": False}
"""matplotlib's settings for plots that take half as long, where they are not the subject."""


def write_tsv(path: Path, rows: list[tuple[str, str]], end: str = "\n") -> Path:
    path.write_bytes("".join(f"{source}\t{target}{end}" for source, target in rows).encode())
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def compress(path: Path) -> Path:
    compressed = path.with_name(path.name + ".gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    return compressed


def upper_case_pairs(rows: int = 80) -> list[tuple[str, str]]:
    """Lower-case letters, and the same in upper case."""
    rng = random.Random(0)
    sources = dict.fromkeys("".join(rng.choices("abcdef", k=rng.randint(2, 6))) for _ in range(2 * rows))
    return [(source, source.upper()) for source in list(sources)[:rows]]


def write_pairs(path: Path, rows: int = 80) -> Path:
    return write_tsv(path, upper_case_pairs(rows))


def write(task: str, folder: Path) -> Path:
    """Data for a task: pairs, images with a bright half and which half that is, or sentences of one pattern."""
    if task == "translate":
        return write_pairs(folder / "pairs.tsv")
    if task == "caption":
        return _write_images(folder / "images")
    rng, words = random.Random(0), ("river", "bank", "Ufer", "día", "мост")
    parts = [(rng.choice(words), rng.choice(words), rng.randint(0, 99)) for _ in range(120)]
    rows = [{"text": f"the {one} saw the {other}, {n} times"} for one, other, n in parts]
    return write_jsonl(folder / "texts.jsonl", rows)


def _write_images(folder: Path) -> Path:
    folder.mkdir()
    rng, lines = np.random.default_rng(0), ["file_name,text"]
    for i in range(60):
        image = rng.integers(0, 90, (6, 8), dtype=np.uint8)
        image[:, slice(0, 4) if i % 3 else slice(4, 8)] += 150
        Image.fromarray(image).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'left' if i % 3 else 'right'}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def build_task(name: str, **overrides: Any) -> Task:
    """The task of such a run."""
    return TASKS[name](build_config(name, {**TINY, **overrides}))


def run(task: str, path: Path, out: Path, *, model: str | Path | None = None, **options: Any) -> TrainResult:
    """A tiny run in this process; `options` are arguments of `train` and fields of its configuration."""
    arguments = {name: options.pop(name) for name in ("eval_file", "resume", "callback") if name in options}
    overrides = {**TINY, **options}
    if model is not None:
        arguments["model"] = str(model)
        overrides = {name: value for name, value in overrides.items() if name not in MODEL_FIELDS}
    with matplotlib.rc_context(SMALL_PLOTS):
        return train(task, [path], out=out, accelerator="cpu", **overrides, **arguments)


LEARNING = {
    "translate": {"max_steps": 28, "batch_size": 16, "learning_rate": 2e-2},
    "lm": {"max_steps": 24, "max_length": 24, "learning_rate": 2e-2},
    "mlm": {"max_steps": 48, "max_length": 32, "batch_size": 32, "learning_rate": 3e-2},
    "caption": {"max_steps": 28, "batch_size": 16, "learning_rate": 2e-2},
}


class TrainedTask:
    """A task that was trained, its folder and its data."""

    def __init__(self, name, folder):
        settings = {**LEARNING[name], "eval_steps": LEARNING[name]["max_steps"], "d_model": 32, "dropout": 0.0}
        path = write_pairs(folder / "pairs.tsv", 200) if name == "translate" else write(name, folder)
        self.out = folder / "out"
        self.result = run(name, path, self.out, **settings)
        self.pretrained = regard.load(self.out)
        self.task = build_task(name, **settings)
        self.data = self.task.load_data([path], None)
        self.rows = [*self.data.train.take(12), *self.data.eval_rows]

    def encode(self, row, epoch=0):
        return self.task.encode(row, epoch, self.pretrained)

    def encode_eval(self, rows):
        return [example for row in rows for example in self.task.encode_eval(row, self.pretrained)]

    def summed_loss(self, examples):
        """Of one batch, and how many tokens it predicts."""
        batch = self.task.batch(examples)
        with torch.no_grad():
            return float(LossModule(self.pretrained.model, self.task).eval()(batch.tensors)), batch.num_predicted

    def losses_one_by_one(self, rows):
        """The summed loss of examples that are each a batch of its own, and how many tokens they predict."""
        return np.sum([self.summed_loss([example]) for example in self.encode_eval(rows)], axis=0)


def options(**overrides: Any) -> list[str]:
    """The options of such a run on the command line."""
    return [
        part for name, value in {**TINY, **overrides}.items() for part in (f"--{name.replace('_', '-')}", str(value))
    ]


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
        self.step, self.last_step = step, 0

    def on_update_end(self, progress: Any, loss: float) -> None:
        self.last_step = progress.step

    def should_stop(self) -> bool:
        return self.last_step >= self.step


class Kill(Callback):
    """Kills its process by kill -9 after an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, progress: Any, loss: float) -> None:
        if progress.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


PRELOADED = [
    *("runs", "regard.cli", "regard.training.console", "regard.views.figures.maps", "datasets", "lightning_fabric"),
    *("matplotlib.backends.backend_agg", "torch.distributed.fsdp", "torch.optim", "torch._dynamo", "rich.progress"),
]
"""The imports of a run that take longest."""


def start_process(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A process of its own, copied from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=args, kwargs=kwargs)
    process.start()
    return process


def start_command(*arguments: object, log: Path, **environment: str) -> Any:
    """``regard`` in a process of its own, whose output goes to a file."""
    return start_process(_run_command, [str(word) for word in arguments], str(log), environment)


def _run_command(arguments: list[str], log: str, environment: dict[str, str]) -> None:
    from regard.cli import main

    torch.set_num_threads(1)
    matplotlib.rcParams.update(SMALL_PLOTS)
    os.environ.update({"HF_HUB_OFFLINE": "1", **environment})
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.argv = ["regard", *arguments]
    with contextlib.suppress(BrokenPipeError):
        main()


def start_processes(*arguments: object, folder: Path) -> list[Any]:
    """Two processes as torchrun starts them, without its startup time."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}
    return [
        start_command(*arguments, log=folder / f"log{rank}", **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(2)
    ]


def wait_for_lines(out: Path, count: int, is_alive: Any) -> None:
    """Wait until a run has written some lines of its metrics."""
    path, deadline = out / "metrics.jsonl", time.monotonic() + 300
    while not path.exists() or path.read_text().count("\n") < count:
        assert is_alive(), "the process ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_for_exit(process: Any) -> int | None:
    """The exit code of a process; None where it did not end in 300 seconds."""
    process.join(300)
    code = process.exitcode
    process.kill()
    return code
