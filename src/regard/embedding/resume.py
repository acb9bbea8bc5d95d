"""`PartsFolder`: the finished parts of a job, in a folder next to its output, so that a stopped job continues."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from regard.embedding.writers import OutputFormat, VectorPart
from regard.errors import InputError
from regard.files import atomic_path, error_reason, fsync
from regard.pretrained import Pretrained

JOB = "job.json"


class PartsFolder:
    """``vectors.parquet.parts/`` next to ``vectors.parquet``: the finished parts, and the settings of the job.

    The name of a part holds the index of its first text, the hash of its texts, and the number of truncated texts, so
    that a changed input is noticed where it has changed.

    Args:
        out: the file that will contain all parts.
        file_format: of the parts and of the file.
        model: the model's name, for the file's metadata.
        settings: everything except the texts that the vectors depend on.

    Raises:
        InputError: the folder has parts of another job.
    """

    def __init__(self, out: Path, file_format: OutputFormat, model: str, settings: Mapping[str, str]) -> None:
        self.out, self.format, self.model, self.settings = out, file_format, model, dict(settings)
        self.path = out.with_name(f"{out.name}.parts")
        self.parts = {path.stem.rpartition("-")[0]: path for path in self.path.glob("*-*-*.part")}
        if self.parts:
            self._check_settings()

    def _check_settings(self) -> None:
        try:
            before = json.loads((self.path / JOB).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            before = {}
        changes = [
            f"{name} {before.get(name)} (now {now})" for name, now in self.settings.items() if before.get(name) != now
        ]
        if changes:
            raise InputError(
                f"{self.path} holds parts of another job: {'; '.join(changes)}. Finish it by its own command, remove "
                "the folder, or name another output"
            )

    def has(self, first: int, texts: Sequence[str], *, truncate: bool) -> bool:
        """Whether the part with these texts is finished.

        Args:
            first: the index of the first text in the input.
            texts: all texts of the part.
            truncate: whether texts of the part may have been truncated.

        Raises:
            InputError: there is a part with other texts at the same index.
        """
        key = _part_key(first, texts)
        if key in self.parts:
            return truncate or _num_truncated(self.parts[key]) == 0
        if any(other.startswith(f"{first:012}-") for other in self.parts):
            raise InputError(
                f"the input is not the one of which {self.path} holds parts: texts from number {first + 1} on are "
                "others. Remove the folder, or name another output"
            )
        return False

    def add(self, part: VectorPart, num_truncated: int) -> None:
        """Store a finished part."""
        key = _part_key(part.first, part.texts)
        path = self.path / f"{key}-{num_truncated}.part"
        with atomic_path(path, self.path) as draft:
            self.format.write(part, draft)
            fsync(draft)
        self.parts[key] = path

    def join(self) -> int:
        """Write the output from all parts, and remove the folder; returns the number of truncated texts."""
        parts = sorted(self.parts.values())
        with atomic_path(self.out, self.path) as draft:
            self.format.join(parts, draft, {"model": self.model, "pooling": self.settings["pooling"]})
            fsync(draft)
        shutil.rmtree(self.path)
        return sum(map(_num_truncated, parts))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make the folder for the block; remove it at the end if it has no parts.

        Raises:
            InputError: a file cannot be written; the message says where the finished parts are.
        """
        try:
            self.path.mkdir(exist_ok=True)
            with atomic_path(self.path / JOB) as draft:
                draft.write_text(json.dumps(self.settings), encoding="utf-8")
                fsync(draft)
            yield
        except OSError as error:
            raise InputError(
                f"cannot write {error.filename or self.out}: {error_reason(error)}. What is finished stays in "
                f"{self.path}, and the same command continues from there"
            ) from error
        finally:
            if not self.parts:
                shutil.rmtree(self.path, ignore_errors=True)


def fingerprint(pretrained: Pretrained) -> str:
    """A hash of a model's weights, its config and its tokenizer."""
    digest = hashlib.sha256(repr(pretrained.config).encode())
    if pretrained.tokenizer is not None:
        digest.update(str(pretrained.tokenizer.to_str()).encode())  # type: ignore[union-attr]
    for name, tensor in pretrained.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _num_truncated(part: Path) -> int:
    return int(part.stem.rpartition("-")[2])


def _part_key(first: int, texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{first:012}-{digest.hexdigest()[:16]}"
