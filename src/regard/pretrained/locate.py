"""Finds a model by its name: a folder, a GGUF file, an offline copy, or a name on the Hub."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import InputError, short_repr
from regard.pretrained.hub import (
    CONFIG_FILE,
    GGUF_SUFFIX,
    INDEX_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    FileMissingError,
    HubFiles,
    LocalFiles,
    ModelFiles,
    choice_of_gguf,
    gguf_files_of_hub,
)
from regard.pretrained.offline import DEFAULT_DECODER, DEFAULT_MODEL, MINILM, SMOLLM2, SMOLLM2_FILE, SMOLLM2_ORIGINAL


@dataclass(frozen=True)
class GGUFFile:
    """A model in one file of llama.cpp's format."""

    path: Path
    name: str = ""
    """The name under which the model is known, where that is not the path."""


def locate_files(name: str) -> ModelFiles | GGUFFile:
    """The files of a model.

    An existing folder or GGUF file is taken as it is. The default models are read from their offline copies if those
    are installed and unchanged. Any other name is looked up on the Hub, which obeys HF_HOME, HF_HUB_OFFLINE,
    HF_ENDPOINT and HF_TOKEN.

    Raises:
        InputError: no such folder or model; no network and nothing in the cache; several GGUF files to choose from.
    """
    try:
        path = Path(name).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown ~user, a null character
        raise InputError(f"{short_repr(name)} is no name of a folder or a model: {error}") from error
    if name and is_folder:
        return _files_of_folder(path)
    if name and exists:
        if path.suffix.lower() == GGUF_SUFFIX:
            return GGUFFile(path)
        raise InputError(
            f"{name!r} is a file; hand over the folder that holds {CONFIG_FILE}, {TOKENIZER_FILE} and {WEIGHTS_FILE}, "
            f"or a file {GGUF_SUFFIX}"
        )
    if name == DEFAULT_DECODER:
        if problem := SMOLLM2.problem():
            raise InputError(f"{name!r} is the offline copy of a model, which is {problem}")
        return GGUFFile(SMOLLM2.path / SMOLLM2_FILE, name)
    repository, file = _hub_file(name)
    if not repository.strip() or name.startswith((".", "/", "~")) or repository.count("/") > 1 or "\\" in name:
        what, example = ("file", "OWNER/NAME/FILE.gguf") if file else ("folder", DEFAULT_MODEL)
        raise InputError(f"{name!r} is not a {what} here, and not a Hub name such as {example!r}")
    if file:
        return GGUFFile(HubFiles(repository, file).require(file), name)
    if name == SMOLLM2_ORIGINAL:
        return _smollm2(name)
    if name != DEFAULT_MODEL:
        return _files_of_hub(name)
    reason = MINILM.problem()
    if not reason:
        return LocalFiles(MINILM.path)
    try:
        return HubFiles(name)
    except InputError as error:
        raise InputError(f"{error}. Its offline copy: {reason}") from error


def _hub_file(name: str) -> tuple[str, str]:
    """The repository on the Hub and the GGUF file in it that a name says; no file where it names a repository."""
    if not name.lower().endswith(GGUF_SUFFIX):
        return name, ""
    parts = name.split("/")
    of_repository = min(2, len(parts) - 1)  # the first models on the Hub have no owner
    return "/".join(parts[:of_repository]), "/".join(parts[of_repository:])


def _files_of_folder(folder: Path) -> ModelFiles | GGUFFile:
    """A folder's files; its GGUF file where it has no other weights."""
    files = LocalFiles(folder)
    if not all(map(files.find, (CONFIG_FILE, WEIGHTS_FILE))) and files.find(INDEX_FILE) is None:
        found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == GGUF_SUFFIX)
        if found:
            return GGUFFile(files.require(_only_gguf(found, str(folder))))
    return files


def _files_of_hub(name: str) -> ModelFiles | GGUFFile:
    """A model's files on the Hub; its GGUF file where it has no config.json, as most repositories of GGUF files."""
    try:
        return HubFiles(name)
    except FileMissingError as error:
        found = gguf_files_of_hub(name)
        if not found:
            raise
        missing = error
    file = _only_gguf(found, name)
    try:
        return GGUFFile(HubFiles(name, file).require(file), name)
    except InputError as error:
        raise error from missing


def _only_gguf(found: Sequence[str], place: str) -> str:
    if len(found) > 1:
        raise InputError(f"{place} has several GGUF files: {choice_of_gguf(found, place)}")
    return found[0]


def _smollm2(name: str) -> ModelFiles | GGUFFile:
    """The Hub's files, and where they cannot be had, the offline copy, under its own name."""
    try:
        return HubFiles(name)
    except InputError as error:
        if problem := SMOLLM2.problem():
            raise InputError(f"{error}. Its 4-bit offline copy: {problem}") from error
        warnings.warn(
            f"{name} could not be fetched; this is {DEFAULT_DECODER!r} in its place: the same model with weights of 4 "
            "bits, dequantised, whose numbers differ",
            stacklevel=4,
        )
        return GGUFFile(SMOLLM2.path / SMOLLM2_FILE, DEFAULT_DECODER)
