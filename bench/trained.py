"""Whole trainings on the built-in data, minutes each."""

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
from regard.training.config import build_config
from regard.training.tasks import TASKS, Task
from regard.training.train import train

Rows = Sequence[Any]


def dates(**overrides: Any) -> Iterator[Row]:
    """The exact matches of eval dates, and the words that their months attend to."""
    task, model, rows, _, took = _trained("translate", overrides)
    found = task.metrics(model, rows, 0.0, len(rows))["exact_match"]
    case = f"translate, {len(rows):,} eval dates"
    yield Row(f"{case}: exact match", "", f"{found:.1%}", "99 % within 10 min", took)
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


def lm(**overrides: Any) -> Iterator[Row]:
    """Bits for each byte of the eval texts, and the bits of a compressor that has read the training texts."""
    task, model, rows, result, took = _trained("lm", overrides)
    assert result.progress.best_loss is not None
    bits = task.metrics(model, rows, result.progress.best_loss, 0)["bits_per_byte"]
    before = "".join(row["text"] for row in task.load_data([], None).train).encode()
    eval_text = "".join(row["text"] for row in rows).encode()
    against = f"xz -9e after the training text: {8 * (_xz(before + eval_text) - _xz(before)) / len(eval_text):.2f}"
    case = f"lm, {len(rows)} eval topics of Python's documentation: bits per byte"
    yield Row(case, against, f"{bits:.3f}", "under 1.79 within 20 min", took)


def _xz(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def digits(**overrides: Any) -> Iterator[Row]:
    """The exact matches of eval digits, spelled."""
    task, model, rows, _, took = _trained("caption", overrides)
    found = task.metrics(model, rows, 0.0, len(rows))["exact_match"]
    yield Row(f"caption, {len(rows)} eval digits: exact match", "", f"{found:.1%}", "95 %", took)


def _trained(name: str, overrides: dict[str, Any]) -> tuple[Task, Pretrained, Rows, TrainResult, str]:
    """A task, its trained model, the eval rows, the result of the run, and the minutes it took."""
    task = TASKS[name](build_config(name, overrides))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        started = time.perf_counter()
        result = train(name, out=out, accelerator="cpu", **overrides)
        took = time.perf_counter() - started
        model = regard.load(out)
    minutes = f"{took / 60:.1f} min on {torch.get_num_threads()} threads"
    return task, model, task.load_data([], None).eval_rows, result, minutes
