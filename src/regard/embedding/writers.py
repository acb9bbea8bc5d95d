"""Files of vectors: Parquet, NumPy and safetensors; one file for each part of a job, then one file of all parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from regard.errors import InputError, import_optional


@dataclass(frozen=True)
class VectorPart:
    """Consecutive texts and their vectors."""

    first: int
    """The index of the first text in the input."""
    texts: Sequence[str]
    vectors: NDArray[np.float32]
    """One for each text, or for each token, one text after the other."""
    ids: Sequence[Sequence[int]] | None = None
    """The token ids of each text, where each token has a vector."""
    tokens: Sequence[Sequence[str]] | None = None
    """The same tokens as strings."""

    @property
    def index(self) -> NDArray[np.int64]:
        """The index of each text in the input."""
        return np.arange(self.first, self.first + len(self.texts), dtype=np.int64)


class SafetensorsFormat:
    """``index`` and ``vectors``; with one vector for each token also ``offsets`` and ``ids``.

    The vectors of text n are then ``vectors[offsets[n]:offsets[n + 1]]``.
    """

    suffix = ".safetensors"

    def write(self, part: VectorPart, path: Path) -> None:
        """Write a part; it has ``lengths`` instead of ``offsets``."""
        arrays: dict[str, NDArray[Any]] = {"index": part.index, "vectors": part.vectors}
        if part.ids is not None:
            arrays["lengths"] = np.array([len(ids) for ids in part.ids], dtype=np.int64)
            arrays["ids"] = np.array([i for ids in part.ids for i in ids], dtype=np.int64)
        _write_safetensors(path, {name: (array.shape, [array]) for name, array in arrays.items()}, {})

    def join(self, parts: Sequence[Path], path: Path, metadata: Mapping[str, str]) -> None:
        """Write all parts as one file."""
        with safe_open(parts[0], "numpy") as first:
            names = list(first.keys())
        columns: dict[str, tuple[tuple[int, ...], Iterable[NDArray[Any]]]] = {}
        for name in names:
            rows, *shape = _joined_shape(parts, name)
            if name == "lengths":
                columns["offsets"] = (rows + 1,), _offsets(parts)
            else:
                columns[name] = (rows, *shape), _arrays(parts, name)
        _write_safetensors(path, columns, metadata)


class NpyFormat(SafetensorsFormat):
    """One array (texts, d_model) for `numpy.load`, which can map it into memory; its parts are safetensors."""

    suffix = ".npy"

    def join(self, parts: Sequence[Path], path: Path, metadata: Mapping[str, str]) -> None:
        """Write all parts as one file; an array has no metadata."""
        header = {"descr": "<f4", "fortran_order": False, "shape": _joined_shape(parts, "vectors")}
        with open(path, "wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for array in _arrays(parts, "vectors"):
                stream.write(array.data)


class ParquetFormat:
    """Columns ``index``, ``text`` and ``vector``; with one vector for each token ``tokens`` and ``vectors``."""

    suffix = ".parquet"

    def write(self, part: VectorPart, path: Path) -> None:
        """Write a part as one row group."""
        pa, parquet = import_optional("pyarrow", "train"), import_optional("pyarrow.parquet", "train")
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.vectors.reshape(-1)), part.vectors.shape[1])
        columns = {"index": pa.array(part.index), "text": pa.array(part.texts, pa.string())}
        if part.tokens is None:
            columns["vector"] = vectors
        else:
            offsets = np.cumsum([0, *map(len, part.tokens)], dtype=np.int32)
            columns["tokens"] = pa.array([list(tokens) for tokens in part.tokens], pa.list_(pa.string()))
            columns["vectors"] = pa.ListArray.from_arrays(pa.array(offsets), vectors)
        table = pa.table(columns)
        with self._writer(parquet, path, table.schema) as writer:
            writer.write_table(table)

    def join(self, parts: Sequence[Path], path: Path, metadata: Mapping[str, str]) -> None:
        """Write all parts as one file, each as one row group."""
        parquet = import_optional("pyarrow.parquet", "train")
        schema = parquet.read_schema(parts[0]).with_metadata({f"regard.{key}": text for key, text in metadata.items()})
        with self._writer(parquet, path, schema) as writer:
            for part in parts:
                writer.write_table(parquet.ParquetFile(part).read().cast(schema))

    @staticmethod
    def _writer(parquet: Any, path: Path, schema: Any) -> Any:
        # A dictionary of vectors takes time and saves nothing: no number occurs twice.
        return parquet.ParquetWriter(path, schema, use_dictionary=["tokens.list.element"], compression="snappy")


OutputFormat = ParquetFormat | SafetensorsFormat
FORMATS: dict[str, OutputFormat] = {
    ".parquet": ParquetFormat(),
    ".npy": NpyFormat(),
    ".safetensors": SafetensorsFormat(),
}


def output_format(path: Path, *, per_token: bool) -> OutputFormat:
    """The format of a file, by its name.

    Args:
        path: the file.
        per_token: whether each token has a vector.

    Raises:
        InputError: another name; a format that cannot store texts of several lengths; pyarrow is not installed.
    """
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise InputError(f"{path}: vectors are written to {', '.join(FORMATS)}")
    if per_token and isinstance(file_format, NpyFormat):
        raise InputError(
            f"{path}: with pooling=none each text has as many vectors as tokens, and the rows of a NumPy array have "
            "one length. Write to .parquet or .safetensors"
        )
    if isinstance(file_format, ParquetFormat):
        import_optional("pyarrow.parquet", "train")
    return file_format


def _arrays(parts: Sequence[Path], name: str) -> Iterator[NDArray[Any]]:
    """An array of each part, one part at a time."""
    for part in parts:
        with safe_open(part, "numpy") as file:
            yield file.get_tensor(name)


def _joined_shape(parts: Sequence[Path], name: str) -> tuple[int, ...]:
    shapes = []
    for part in parts:
        with safe_open(part, "numpy") as file:
            shapes.append(file.get_slice(name).get_shape())
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _offsets(parts: Sequence[Path]) -> Iterator[NDArray[np.int64]]:
    """The first row of each text, and the number of rows."""
    end = np.zeros(1, dtype=np.int64)
    yield end
    for lengths in _arrays(parts, "lengths"):
        ends = lengths.cumsum() + end
        yield ends
        end = ends[-1:] if len(ends) else end


def _write_safetensors(
    path: Path, columns: Mapping[str, tuple[tuple[int, ...], Iterable[NDArray[Any]]]], metadata: Mapping[str, str]
) -> None:
    """Write tensors of any size, each from its shape and from arrays that follow one another.

    The library `safetensors` has no function that writes a file in pieces. The format is the length of the header, the
    header as JSON, and the numbers: float32 for ``vectors``, int64 for every other name.
    """
    dtypes = {name: ("F32", 4) if name == "vectors" else ("I64", 8) for name in columns}
    ordered = sorted(columns, key=lambda name: (-dtypes[name][1], name))  # aligned to 8 bytes, as the library does
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name in ordered:
        (dtype, itemsize), shape = dtypes[name], columns[name][0]
        start, end = end, end + prod(shape) * itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in ordered:
            for array in columns[name][1]:
                stream.write(np.ascontiguousarray(array).data)
