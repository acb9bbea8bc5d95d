"""What is learned from the data that is always there: whole trainings, minutes each."""

from __future__ import annotations

import lzma
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from bench.table import Row
from regard.lens.text.run import run
from regard.pretrained import Pretrained
from regard.training.callbacks import TrainResult
from regard.training.distributed import create_fabric
from regard.training.tasks import TASKS, Task
from regard.training.train import build_config, train

Rows = Sequence[Any]


def dates(**settings: Any) -> Iterator[Row]:
    """Held-out dates, written exactly, and where their months come from."""
    task, model, rows, _, took = _trained("translate", settings)
    found = task.metrics(model, rows, 0.0, len(rows))["exact_match"]
    case = f"translate, {len(rows):,} held-out dates"
    yield Row(f"{case}: exact", "", f"{found:.1%}", "99 % within 10 min", took)
    every = [_strongest(model, row) for row in rows]
    for layer in reversed(range(len(every[0]))):
        words = sum(word for word, _ in (each[layer] for each in every)) / len(rows)
        tokens = sum(token for _, token in (each[layer] for each in every)) / len(rows)
        bar = "90 %" if layer == len(every[0]) - 1 else ""
        where = f"decoder layer {layer}, the month's word is the strongest source of the month's digits"
        yield Row(f"{where}, of all words", "", f"{words:.1%}", bar)
        yield Row(f"{where}, of all words and the end", "", f"{tokens:.1%}")


def _strongest(model: Pretrained, row: Any) -> list[tuple[bool, bool]]:
    """For each decoder layer, whether the month's word is the strongest source; also against the source's end.

    A word is a run of characters without white space; its weight is the sum of its tokens', in the mean of all heads
    and of the positions that write the month's two digits.
    """
    assert model.tokenizer is not None
    source, target = (model.tokenizer.encode(row[side]).offsets for side in ("source", "target"))
    writes = [at for at, span in enumerate(target) if _overlap(span, (5, 7))]
    words = [found.span() for found in re.finditer(r"\S+", row["source"])]
    tokens = [[at for at, span in enumerate(source) if _overlap(span, word)] for word in words]
    (month,) = (n for n, word in enumerate(words) if _overlap(word, row["month_at"]))
    recording = run(row["source"], model, target=row["target"]).recording
    found = []
    for path in recording:
        if recording.entry(path).kind == "cross":
            weights = recording[path].dense()[0].mean(0)[writes].mean(0)
            of_words = [float(weights[some].sum()) for some in tokens]
            in_words = {at for some in tokens for at in some}
            others = [float(weight) for at, weight in enumerate(weights) if at not in in_words]
            is_first = of_words.index(max(of_words)) == month
            found.append((is_first, is_first and of_words[month] > max(others, default=0.0)))
    return found


def _overlap(span: Sequence[int], other: Sequence[int]) -> bool:
    return span[0] < other[1] and other[0] < span[1]


def lm(**settings: Any) -> Iterator[Row]:
    """Bits for each byte of texts that were held out, and what a compressor needs that has seen the others."""
    task, model, rows, ended, took = _trained("lm", settings)
    assert ended.progress.best_loss is not None
    bits = task.metrics(model, rows, ended.progress.best_loss, 0)["bits_per_byte"]
    before = "".join(row["text"] for row in task.load_data([], None).train).encode()
    held_out = "".join(row["text"] for row in rows).encode()
    against = f"xz -9e after the training text: {8 * (_xz(before + held_out) - _xz(before)) / len(held_out):.2f}"
    case = f"lm, {len(rows)} held-out topics of Python's documentation: bits per byte"
    yield Row(case, against, f"{bits:.3f}", "under 1.79 within 20 min", took)


def _xz(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def digits(**settings: Any) -> Iterator[Row]:
    """Held-out digits, spelled."""
    task, model, rows, _, took = _trained("caption", settings)
    found = task.metrics(model, rows, 0.0, len(rows))["exact_match"]
    yield Row(f"caption, {len(rows)} held-out digits: exact", "", f"{found:.1%}", "95 %", took)


def _trained(name: str, settings: dict[str, Any]) -> tuple[Task, Pretrained, Rows, TrainResult, str]:
    """A task, the model that its training leaves, the held-out rows, how it ended, and the minutes on the wall."""
    task = TASKS[name](build_config(TASKS[name], settings))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        begun = time.perf_counter()
        ended = train(name, out=out, fabric=create_fabric(accelerator="cpu"), overrides=settings)
        took = time.perf_counter() - begun
        model = regard.load(out)
    minutes = f"{took / 60:.1f} min on {torch.get_num_threads()} threads"
    return task, model, task.load_data([], None).eval_rows, ended, minutes
