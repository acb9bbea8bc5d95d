"""Runs that take a second or two, in this process or in one of their own that is there at once."""

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
from PIL import Image
from safetensors.torch import load_file
from written import jsonl, tsv

from regard.training.callbacks import Ended, Watcher
from regard.training.distributed import engine
from regard.training.train import train

TINY: dict[str, Any] = {
    "layers": 1,
    "d_model": 16,
    "heads": 2,
    "d_ff": 32,
    "context": 16,
    "vocab_size": 280,
    "batch_size": 8,
    "lr": 1e-2,
    "warm_up": 2,
    "steps": 10,
    "evaluate_every": 5,
    "patience": None,
}


PRELOADED = [
    *("runs", "regard.cli", "regard.training.train", "regard.training.console", "regard.views.figures.maps"),
    *("datasets", "lightning_fabric", "matplotlib.backends.backend_agg", "torch.distributed.fsdp", "torch.optim"),
    *("torch._dynamo", "rich.progress"),
]
"""What a run imports, and takes longest."""


def write_pairs(path: Path, rows: int = 200) -> Path:
    """Letters, and the same ones large."""
    drawn = random.Random(0)
    sources = dict.fromkeys("".join(drawn.choices("abcdef", k=drawn.randint(2, 6))) for _ in range(2 * rows))
    return tsv(path, [(source, source.upper()) for source in list(sources)[:rows]])


def write_texts(path: Path, rows: int = 120) -> Path:
    """Sentences of one pattern."""
    drawn = random.Random(0)
    names = ("river", "bank", "Ufer", "día", "мост")
    said = [
        f"the {drawn.choice(names)} saw the {drawn.choice(names)}, {drawn.randint(0, 99)} times" for _ in range(rows)
    ]
    return jsonl(path, [{"text": text} for text in said])


def write_pictures(folder: Path, rows: int = 60) -> Path:
    """Pictures of 8 x 6 with a bright half, and which half that is."""
    folder.mkdir()
    numbers = np.random.default_rng(0)
    lines = ["file_name,text"]
    for i in range(rows):
        image = numbers.integers(0, 90, (6, 8), dtype=np.uint8)
        image[:, slice(0, 4) if i % 3 else slice(4, 8)] += 150
        Image.fromarray(image).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'left' if i % 3 else 'right'}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def write(task: str, folder: Path) -> Path:
    """Data for a task."""
    if task == "translate":
        return write_pairs(folder / "pairs.tsv")
    return write_pictures(folder / "pictures") if task == "caption" else write_texts(folder / "texts.jsonl")


def run(
    task: str,
    paths: Path | list[Path],
    out: Path,
    *,
    held_out: Path | None = None,
    model: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    checked: bool = False,
    **settings: Any,
) -> Ended:
    """A tiny run in this process, without the shape checks, which take most of the time."""
    asked = {name: value for name, value in {**TINY, **settings}.items() if value is not None}
    if model is not None:
        asked = {
            name: asked[name] for name in asked if name not in ("layers", "d_model", "heads", "d_ff", "vocab_size")
        }
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", not checked)
    try:
        return _train(task, paths, out, held_out, model, resume, asked, watcher)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _train(task, paths, out, held_out, model, resume, asked, watcher) -> Ended:
    return train(
        task,
        paths if isinstance(paths, list) else [paths],
        out=out,
        fabric=engine(accelerator="cpu"),
        held_out=held_out,
        model=None if model is None else str(model),
        resume=resume,
        settings=asked,
        watcher=watcher,
    )


def options(**settings: Any) -> list[str]:
    """The same, as the command line has it."""
    asked = {name: value for name, value in {**TINY, **settings}.items() if value is not None}
    return [part for name, value in asked.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of a model."""
    return load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether weights are equal, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run measured, but for how long it took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def losses(folder: Path) -> list[float]:
    """Of the updates, and the held-out ones between them."""
    return [line.get("loss", line.get("held_out_loss")) for line in metrics(folder)]


class Stop(Watcher):
    """Asks to leave after an update."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.done = 0

    def updated(self, progress: Any, loss: float) -> None:
        self.done = progress.step

    def leaving(self) -> bool:
        return self.done >= self.step


def command(
    *arguments: object, log: Path, limit: int | None = None, missing: str | None = None, **environment: str
) -> Any:
    """``regard`` with arguments, in a process of its own, copied from one that has imported everything.

    Args:
        arguments: of the command.
        log: where standard output and standard error go.
        limit: of the bytes of any file that it writes; a write beyond fails as on a full disk.
        missing: a library that it finds not installed.
        environment: variables.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    said = [str(each) for each in arguments]
    process = context.Process(target=_command, args=(said, str(log), limit, missing, environment))
    process.start()
    return process


def _command(
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


def finished(process: Any, seconds: float = 300) -> int:
    """The exit code of a process, which has so long."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"still running after {seconds} s")
    return int(process.exitcode)
