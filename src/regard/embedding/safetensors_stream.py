"""Files of safetensors, written and joined without holding them in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Column", "copied", "header", "write"]

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
BLOCK = 2**24


@dataclass(frozen=True)
class Column:
    """A tensor whose numbers come one piece after the other."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[bytes | memoryview]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Column:
        """Of an array that is there."""
        (dtype,) = (name for name, known in DTYPES.items() if known == values.dtype)
        flat = np.ascontiguousarray(values).reshape(-1)
        return cls(dtype, values.shape, [flat.view(np.uint8).data])

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def write(path: Path, columns: Mapping[str, Column], metadata: Mapping[str, str]) -> None:
    """Write tensors as ``safetensors`` reads them: the length of the header, the header as JSON, the numbers."""
    # What is aligned to 8 bytes goes first.
    ordered = sorted(columns.items(), key=lambda item: (-DTYPES[item[1].dtype].itemsize, item[0]))
    told: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, column in ordered:
        told[name] = {"dtype": column.dtype, "shape": list(column.shape), "data_offsets": [at, at + column.size]}
        at += column.size
    head = json.dumps(told).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        for _, column in ordered:
            for piece in column.pieces:
                stream.write(piece)


def header(path: Path) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, and where their numbers begin."""
    with open(path, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return json.loads(stream.read(size)), 8 + size


def copied(paths: Iterable[Path], name: str) -> Iterator[bytes]:
    """The numbers of a tensor of several files, one after the other."""
    for path in paths:
        told, start = header(path)
        first, end = told[name]["data_offsets"]
        with open(path, "rb") as stream:
            stream.seek(start + first)
            left = end - first
            while left:
                block = stream.read(min(left, BLOCK))
                left -= len(block)
                yield block
