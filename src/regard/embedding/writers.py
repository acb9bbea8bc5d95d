"""The files that vectors are written to: one for each part of a job, then one of all parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.embedding import safetensors_stream
from regard.errors import InputError, needed

__all__ = ["FORMATS", "Format", "Npy", "Parquet", "Part", "Safetensors", "format_of"]


@dataclass(frozen=True)
class Part:
    """Some texts that follow one another, and their vectors."""

    first: int
    """Which text of the input the first one is."""
    texts: Sequence[str]
    vectors: NDArray[np.float32]
    """One for each text, or for each token, one text after the other."""
    ids: Sequence[Sequence[int]] | None = None
    """The tokens of each text, where each has a vector."""
    tokens: Sequence[Sequence[str]] | None = None
    """The same as the tokenizer spells them."""

    @property
    def index(self) -> NDArray[np.int64]:
        """Which text of the input each one is."""
        return np.arange(self.first, self.first + len(self.texts), dtype=np.int64)


class Safetensors:
    """``index`` and ``vectors``; with one vector for each token also ``offsets`` and ``ids``.

    The vectors of text n are then ``vectors[offsets[n]:offsets[n + 1]]``.
    """

    suffix = ".safetensors"

    def write(self, part: Part, path: Path) -> None:
        """Write a part; here ``lengths`` stand for offsets."""
        columns: dict[str, NDArray[Any]] = {"index": part.index, "vectors": part.vectors}
        if part.ids is not None:
            columns["lengths"] = np.array([len(ids) for ids in part.ids], dtype=np.int64)
            columns["ids"] = np.array([i for ids in part.ids for i in ids], dtype=np.int64)
        safetensors_stream.write(
            path, {name: safetensors_stream.Column.of(values) for name, values in columns.items()}, {"format": "pt"}
        )

    def join(self, parts: Sequence[Path], path: Path, metadata: Mapping[str, str]) -> None:
        """Write all parts as one file."""
        told = [safetensors_stream.header(part)[0] for part in parts]
        columns = {}
        for name in told[0]:
            if name == "__metadata__":
                continue
            rows = sum(each[name]["shape"][0] for each in told)
            dtype, shape = told[0][name]["dtype"], told[0][name]["shape"]
            if name == "lengths":
                columns["offsets"] = safetensors_stream.Column(dtype, (rows + 1,), _offsets(parts))
            else:
                columns[name] = safetensors_stream.Column(
                    dtype, (rows, *shape[1:]), safetensors_stream.copied(parts, name)
                )
        safetensors_stream.write(path, columns, {"format": "pt", **metadata})


class Npy(Safetensors):
    """One array (texts, d_model), for `numpy.load`, which can map it into memory; its parts are safetensors."""

    suffix = ".npy"

    def join(self, parts: Sequence[Path], path: Path, metadata: Mapping[str, str]) -> None:
        """Write all parts as one file; an array has no place for metadata."""
        shapes = [safetensors_stream.header(part)[0]["vectors"]["shape"] for part in parts]
        shape = (sum(rows for rows, _ in shapes), shapes[0][1])
        with open(path, "wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for piece in safetensors_stream.copied(parts, "vectors"):
                stream.write(piece)


class Parquet:
    """Columns ``index``, ``text`` and ``vector``; with one vector for each token ``tokens`` and ``vectors``."""

    suffix = ".parquet"

    def write(self, part: Part, path: Path) -> None:
        """Write a part, as one group of rows."""
        pa, parquet = needed("pyarrow", "train"), needed("pyarrow.parquet", "train")
        width = part.vectors.shape[1]
        flat = pa.FixedSizeListArray.from_arrays(pa.array(part.vectors.reshape(-1)), width)
        columns = {"index": pa.array(part.index), "text": pa.array(part.texts, pa.string())}
        if part.tokens is None:
            columns["vector"] = flat
        else:
            ends = np.cumsum([0, *map(len, part.tokens)], dtype=np.int32)
            columns["tokens"] = pa.array([list(tokens) for tokens in part.tokens], pa.list_(pa.string()))
            columns["vectors"] = pa.ListArray.from_arrays(pa.array(ends), flat)
        table = pa.table(columns)
        with self._writer(parquet, path, table.schema) as writer:
            writer.write_table(table)

    def join(self, parts: Sequence[Path], path: Path, metadata: Mapping[str, str]) -> None:
        """Write all parts as one file, each a group of rows."""
        parquet = needed("pyarrow.parquet", "train")
        schema = parquet.read_schema(parts[0]).with_metadata({f"regard.{key}": text for key, text in metadata.items()})
        with self._writer(parquet, path, schema) as writer:
            for part in parts:
                writer.write_table(parquet.ParquetFile(part).read().cast(schema))

    @staticmethod
    def _writer(parquet: Any, path: Path, schema: Any) -> Any:
        # Of numbers that never come twice a dictionary only takes time.
        return parquet.ParquetWriter(path, schema, use_dictionary=["tokens.list.element"], compression="snappy")


Format = Parquet | Safetensors
FORMATS: dict[str, Format] = {".parquet": Parquet(), ".npy": Npy(), ".safetensors": Safetensors()}


def format_of(out: Path, *, each_token: bool) -> Format:
    """The format that a file's name asks for.

    Args:
        out: the file.
        each_token: whether there is a vector for each token.

    Raises:
        InputError: another name; a format that cannot hold texts of several lengths; pyarrow is not installed.
    """
    found = FORMATS.get(out.suffix.lower())
    if found is None:
        raise InputError(f"{out}: vectors are written to {', '.join(FORMATS)}")
    if each_token and isinstance(found, Npy):
        raise InputError(
            f"{out}: with --pool none each text has as many vectors as tokens, and the rows of a NumPy array are of "
            "one length. Write to .parquet or .safetensors"
        )
    if isinstance(found, Parquet):
        needed("pyarrow.parquet", "train")
    return found


def _offsets(parts: Sequence[Path]) -> Iterator[bytes]:
    """Where each text begins, and where the last one ends."""
    yield np.zeros(1, dtype=np.int64).tobytes()
    last = 0
    for part in parts:
        ends = np.frombuffer(b"".join(safetensors_stream.copied([part], "lengths")), dtype="<i8").cumsum() + last
        yield ends.tobytes()
        last = int(ends[-1]) if len(ends) else last
