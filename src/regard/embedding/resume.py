"""The parts of an unfinished job, in a folder beside its output."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.embedding.writers import Format, Part
from regard.errors import InputError

if TYPE_CHECKING:
    from regard.pretrained import Pretrained

__all__ = ["Folder", "fingerprint"]

JOB = "job.json"


class Folder:
    """``vectors.parquet.parts/`` beside ``vectors.parquet``: what is finished, and what it was made of.

    A part is named after its place, its texts' hash and how many of these were cut, and appears whole or not at all. So
    an input that has changed is seen where it has.

    Args:
        out: the file that will hold all parts.
        form: of the parts and of the file.
        model: its name, for the file's metadata.
        facts: everything beside the texts that the numbers depend on.

    Raises:
        InputError: it holds parts of another job.
    """

    def __init__(self, out: Path, form: Format, model: str, facts: Mapping[str, str]) -> None:
        self.out, self.form, self.model, self.facts = out, form, model, dict(facts)
        self.path = out.with_name(f"{out.name}.parts")
        self.parts = {path.stem.rpartition("-")[0]: path for path in self.path.glob("*-*-*.part")}
        if self.parts:
            self._compare()

    def _compare(self) -> None:
        try:
            before = json.loads((self.path / JOB).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            before = {}
        others = [
            f"{name} {before.get(name)} (now {now})" for name, now in self.facts.items() if before.get(name) != now
        ]
        if others:
            raise InputError(
                f"{self.path} holds parts of another job: {'; '.join(others)}. Finish it by its own command, remove "
                "the folder, or name another output"
            )

    def has(self, first: int, texts: Sequence[str], *, cut: bool) -> bool:
        """Whether these texts were done before.

        Args:
            first: which text of the input is the first of them.
            texts: all of them.
            cut: whether some of them may have been cut.

        Raises:
            InputError: other texts were, at the same place.
        """
        stem = _stem(first, texts)
        if stem in self.parts:
            return cut or _cut(self.parts[stem]) == 0
        if any(other.startswith(f"{first:012}-") for other in self.parts):
            raise InputError(
                f"the input is not the one of which {self.path} holds parts: texts from number {first + 1} on are "
                "others. Remove the folder, or name another output"
            )
        return False

    def add(self, part: Part, cut: int) -> None:
        """Keep a part that is finished."""
        stem = _stem(part.first, part.texts)
        path = self.path / f"{stem}-{cut}.part"
        self._whole(path, lambda draft: self.form.write(part, draft))
        self.parts[stem] = path

    def join(self) -> int:
        """Write the file from all parts, and remove them; returns how many texts were cut."""
        parts = sorted(self.parts.values())
        metadata = {"model": self.model, "pool": self.facts["pool"]}
        self._whole(self.out, lambda draft: self.form.join(parts, draft, metadata))
        shutil.rmtree(self.path)
        return sum(map(_cut, parts))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What cannot be written is an error that says what stays; where nothing is finished, nothing does.

        Raises:
            InputError: it cannot.
        """
        try:
            self.path.mkdir(exist_ok=True)
            self._whole(self.path / JOB, lambda path: path.write_text(json.dumps(self.facts), encoding="utf-8"))
            yield
        except OSError as error:
            raise InputError(
                f"cannot write {error.filename or self.out}: {error.strerror or error}. What is finished stays in "
                f"{self.path}, and the same command goes on from there"
            ) from error
        finally:
            if not self.parts:
                shutil.rmtree(self.path, ignore_errors=True)

    def _whole(self, path: Path, write: Callable[[Path], object]) -> None:
        """Write a file that appears whole or not at all."""
        draft = self.path / f"{os.getpid()}.draft"
        try:
            write(draft)
            with open(draft, "rb") as stream:
                os.fsync(stream.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def fingerprint(pretrained: Pretrained) -> str:
    """A hash of a model's weights, its sizes and its tokenizer.

    Args:
        pretrained: the model.
    """
    found = hashlib.sha256(repr(pretrained.config).encode())
    if pretrained.tokenizer is not None:
        found.update(str(pretrained.tokenizer.to_str()).encode())  # type: ignore[union-attr]
    for name, tensor in pretrained.model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def _cut(part: Path) -> int:
    """How many texts of a part were cut."""
    return int(part.stem.rpartition("-")[2])


def _stem(first: int, texts: Sequence[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return f"{first:012}-{found.hexdigest()[:16]}"
