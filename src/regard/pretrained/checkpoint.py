"""Reading a checkpoint's files with nothing dropped in silence: every refusal names the file, and what in it."""

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
from regard.pretrained.hub import INDEX, PICKLE_REFUSAL, PICKLED, WEIGHTS, MissingError, Source
from regard.pretrained.renames import listed

__all__ = ["Weights", "read_array", "read_object", "read_tokenizer", "read_weights"]


@dataclass(frozen=True)
class Weights:
    """Every tensor of a checkpoint."""

    tensors: dict[str, Tensor]
    """By their names there."""
    path: Path
    """The file that holds them, or the index that says which file holds which."""
    shards: dict[str, str]
    """For each name its file, where there are several."""


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        InputError: the file is missing, not JSON, or holds something else.
    """
    value = _read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object; got {type(value).__name__}")
    return value


def read_array(path: Path) -> list[Any]:
    """The array that a JSON file holds.

    Raises:
        InputError: the file is missing, not JSON, or holds something else.
    """
    value = _read_json(path)
    if not isinstance(value, list):
        raise InputError(f"{path} must hold a JSON array; got {type(value).__name__}")
    return value


def _read_json(path: Path) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the name {next(n for n in names if names.count(n) > 1)!r} is there twice")
        return found

    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, set to give every token of a text: the truncation and padding that its file asks for are off.

    Raises:
        InputError: the file is not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers raises bare Exception, and PanicException, which is not one
        raise InputError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_weights(source: Source) -> Weights:
    """The weights of a model, in one safetensors file or in several with an index.

    Raises:
        InputError: a file is missing, truncated, pickled or cannot be read; an index that does not say what is so.
    """
    try:
        path = source.need(WEIGHTS)
    except MissingError:
        index = source.may_have(INDEX)
        if index is None:
            raise
        return _read_shards(source, index)
    return Weights(_read_file(path), path, {})


def _read_shards(source: Source, index: Path) -> Weights:
    told = read_object(index).get("weight_map")
    if not isinstance(told, dict) or not told or not all(isinstance(file, str) for file in told.values()):
        raise InputError(f"{index} must have a weight_map, which names a file for each weight")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(told.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"{index} names {file!r}; a shard is a .safetensors file beside it")
        try:
            shard = _read_file(source.need(file))
        except MissingError as error:
            raise InputError(f"{error}; {index} says that it holds {_held(told, file)}") from error
        lacking = sorted(name for name, where in told.items() if where == file and name not in shard)
        if lacking:
            raise InputError(f"{index} says that {file} holds {listed(lacking)}, which it does not")
        for name in shard:
            if told.get(name) != file:
                where = f"is in {told[name]}" if name in told else "is nowhere"
                raise InputError(f"{file} holds {name}, which by {index} {where}")
        tensors |= shard
    return Weights(tensors, index, told)


def _held(told: dict[str, str], file: str) -> str:
    return listed(sorted(name for name, where in told.items() if where == file))


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as opened:
            start = opened.read(2)
        if start in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise InputError(f"{path} is a pickled {PICKLED} under another name. {PICKLE_REFUSAL}")
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} is truncated or not safetensors ({error}). Fetch it anew") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
