"""Reads a checkpoint's JSON files, tokenizer and weights; every error names the file and what is wrong in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from regard.errors import InputError
from regard.pretrained.hub import (
    INDEX_FILE,
    PICKLE_REFUSAL,
    PICKLED_FILE,
    WEIGHTS_FILE,
    FileMissingError,
    HubFiles,
    ModelFiles,
    choice_of_gguf,
    gguf_files_of_hub,
)
from regard.pretrained.renames import summarize_names


@dataclass(frozen=True)
class CheckpointWeights:
    """Every tensor of a checkpoint."""

    tensors: dict[str, Tensor]
    """The tensors by their names in the checkpoint."""
    path: Path
    """The file that holds the tensors, or the index of several files."""
    shards: dict[str, str]
    """For each tensor the name of its file; empty where there is one file."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        InputError: the file is missing, not JSON, or holds something else.
    """
    value = _read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object; got {type(value).__name__}")
    return value


def read_json_array(path: Path) -> list[Any]:
    """The array that a JSON file holds.

    Raises:
        InputError: the file is missing, not JSON, or holds something else.
    """
    value = _read_json(path)
    if not isinstance(value, list):
        raise InputError(f"{path} must hold a JSON array; got {type(value).__name__}")
    return value


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: the file cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> Any:
    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the name {next(n for n in names if names.count(n) > 1)!r} is there twice")
        return values

    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer that gives every token of a text: the truncation and the padding that its file asks for are off.

    Raises:
        InputError: the file holds no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.encode("")  # panics where a template names a token that is nowhere
        if len(added.ids) != len(added.tokens):
            raise ValueError(f"its template adds {len(added.ids)} ids and {len(added.tokens)} tokens")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers raises bare Exception, and PanicException, which is no Exception
        raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error
    return tokenizer


def read_weights(files: ModelFiles) -> CheckpointWeights:
    """The weights of a model, in one safetensors file or in several with an index.

    Raises:
        InputError: a file is missing, truncated, pickled or cannot be read; the index contradicts the files.
    """
    try:
        path = files.require(WEIGHTS_FILE)
    except FileMissingError as error:
        index = files.find(INDEX_FILE)
        if index is not None:
            return _read_shards(files, index)
        if isinstance(files, HubFiles) and (found := gguf_files_of_hub(files.name)):
            raise FileMissingError(f"{error}. It has GGUF files: {choice_of_gguf(found, files.name)}") from error
        raise
    return CheckpointWeights(_read_file(path), path, {})


def _read_shards(files: ModelFiles, index: Path) -> CheckpointWeights:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise InputError(f"{index} must have a weight_map, which names a file for each weight")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"{index} names {file!r}; a shard is a .safetensors file beside it")
        expected = sorted(name for name, shard in weight_map.items() if shard == file)
        try:
            shard = _read_file(files.require(file))
        except FileMissingError as error:
            raise InputError(f"{error}; {index} says that it holds {summarize_names(expected)}") from error
        missing = [name for name in expected if name not in shard]
        if missing:
            raise InputError(f"{index} says that {file} holds {summarize_names(missing)}, which it does not")
        for name in shard:
            if weight_map.get(name) != file:
                place = f"is in {weight_map[name]}" if name in weight_map else "is nowhere"
                raise InputError(f"{file} holds {name}, which by {index} {place}")
        tensors |= shard
    return CheckpointWeights(tensors, index, weight_map)


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as opened:
            start = opened.read(2)
        if start in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise InputError(f"{path} is a pickled {PICKLED_FILE} under another name. {PICKLE_REFUSAL}")
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} is truncated or not safetensors ({error}). Fetch it anew") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
