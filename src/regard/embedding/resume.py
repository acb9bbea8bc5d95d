"""`PartsFolder`: the finished parts of a job, in a folder next to its output, so that a stopped job continues."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from regard.embedding.manifest import FinishedPart, Manifest, ensure_own
from regard.embedding.writers import OutputFormat, VectorPart
from regard.errors import InputError
from regard.files import error_reason, fsync, publish


class PartsFolder:
    """``vectors.parquet.parts/`` next to ``vectors.parquet``: the finished parts, which its manifest lists.

    The manifest has the hash of each part's texts, so that a changed input is noticed where it has changed, and the
    hash of each part's file.

    Args:
        out: the file that will contain all parts.
        file_format: of the parts and of the file.
        manifest: of the folder.
    """

    def __init__(self, out: Path, file_format: OutputFormat, manifest: Manifest) -> None:
        self.out, self.format, self.manifest = out, file_format, manifest
        self.num_damaged = 0
        """How many kept parts could not be used."""
        self._joined: list[FinishedPart] = []

    def has(self, first: int, texts: Sequence[str], *, truncate: bool) -> bool:
        """Whether the part with these texts is finished and undamaged.

        Args:
            first: the index of the first text in the input.
            texts: all texts of the part.
            truncate: whether texts of the part may have been truncated.

        Raises:
            InputError: there is a part with other texts at the same index.
        """
        part = self.manifest.parts.get(first)
        if part is None:
            return False
        if part.texts != _hash_texts(texts):
            raise InputError(
                f"the input is not the one of which {self.manifest.folder} holds parts: texts from number {first + 1} "
                "on are others. Remove the folder, or name another output"
            )
        if part.num_truncated and not truncate:
            return False
        try:
            is_whole = _hash_file(self.manifest.file(part)) == part.sha256
        except FileNotFoundError:  # a process was killed before the file got its name
            return False
        if is_whole:
            self._joined.append(part)
        else:  # all that it takes is time, and nobody has to find out which file to delete
            self.num_damaged += 1
        return is_whole

    def add(self, part: VectorPart, num_truncated: int) -> None:
        """Store a finished part."""
        draft = self.manifest.draft
        self.format.write(part, draft)
        fsync(draft)
        finished = FinishedPart(part.first, _hash_texts(part.texts), num_truncated, _hash_file(draft))
        self.manifest.append(finished)
        draft.replace(self.manifest.file(finished))
        self._joined.append(finished)

    def join(self, metadata: Mapping[str, str]) -> int:
        """Write the output from the parts that `has` found or `add` stored; returns the number of truncated texts.

        Raises:
            InputError: the output has appeared in the meantime.
        """
        draft = self.manifest.draft
        self.format.join([self.manifest.file(part) for part in self._joined], draft, metadata)
        fsync(draft)
        try:
            publish(draft, self.out)
        except FileExistsError:
            raise InputError(
                f"another program has written {self.out}, which is not overwritten. What is finished stays in "
                f"{self.manifest.folder}: move {self.out} away, and the same command continues from there"
            ) from None
        with suppress(OSError):  # the output is whole
            self.manifest.remove()
        return sum(part.num_truncated for part in self._joined)


@contextmanager
def open_parts(out: Path, file_format: OutputFormat, settings: Mapping[str, str]) -> Iterator[PartsFolder]:
    """The folder of a job's parts, for this process alone; removed at the end if it has no parts.

    Args:
        out: the file that will contain all parts.
        file_format: of the parts and of the file.
        settings: everything except the texts that the vectors depend on.

    Raises:
        InputError: the folder has parts of another job, or is not regard's; another process works in it; the output
            exists; a file cannot be written, and the message says where the finished parts are.
    """
    path = parts_path(out)
    kept = ""
    try:
        with closing(Manifest.open(path, settings)) as manifest:
            try:
                _ensure_same(manifest, settings)
                ensure_new(out)  # now that no other run can finish
                yield PartsFolder(out, file_format, manifest)
            finally:
                if manifest.parts:
                    kept = f". What is finished stays in {path}, and the same command continues from there"
                    manifest.draft.unlink(missing_ok=True)
                else:
                    with suppress(OSError):
                        manifest.remove()
    except OSError as error:
        raise InputError(f"cannot write {out}: {error_reason(error)}{kept}") from error


def parts_path(out: Path) -> Path:
    """The folder of the parts of an output."""
    return out.with_name(f"{out.name}.parts")


def ensure_new(out: Path) -> None:
    """Ensure that nothing would be overwritten.

    Raises:
        InputError: the output exists, or something that is not regard's has the name of the folder of its parts.
    """
    if os.path.lexists(out):
        raise InputError(f"{out} exists already: remove it, or name another file")
    ensure_own(parts_path(out))


def _ensure_same(manifest: Manifest, settings: Mapping[str, str]) -> None:
    before = manifest.settings
    changes = [f"{name} {before.get(name)} (now {now})" for name, now in settings.items() if before.get(name) != now]
    if changes:
        raise InputError(
            f"{manifest.folder} holds parts of another job: {'; '.join(changes)}. Finish it by its own command, remove "
            "the folder, or name another output"
        )


def _hash_texts(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def _hash_file(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
