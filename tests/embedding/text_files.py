"""Files of texts, jobs that stop, and reading vectors back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
from safetensors.numpy import load_file

FORMATS = ["parquet", "npy", "safetensors"]
WORDS = ["the", "river", "bank", "banks", "loan", "a", "in", "on", "man", *(f"w{i}" for i in range(26))]


def texts(count: int) -> list[str]:
    """Different texts of 1 to 12 words that the small tokenizer knows, an empty one among them, and two equal ones."""
    made = [
        " ".join(WORDS[(n // 35**k + k * k) % 35] for k in range(1 + n % 12)) + f" w{n % 26} {n}" for n in range(count)
    ]
    made[1], made[-1] = "", made[0]
    return made


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


class Stopped(Exception):
    """A job was stopped."""


def stop_after(count: int) -> Callable[[int, int | None, bool], None]:
    """An `on_progress` that stops the job when more texts are done."""

    def on_progress(num_done: int, total: int | None, resumed: bool) -> None:
        if num_done > count:
            raise Stopped

    return on_progress


def vectors_of(path: Path) -> np.ndarray:
    """(texts, d_model) of a file of any format."""
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    if path.suffix == ".safetensors":
        return load_file(path)["vectors"]
    return np.stack(pyarrow.parquet.read_table(path)["vector"].to_numpy())
