"""Reading a checkpoint's files with nothing dropped in silence: every refusal names the file, and what in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from regard.errors import InputError
from regard.pretrained.locate import PICKLE_REFUSAL, PICKLED

__all__ = ["Rename", "fill", "read_array", "read_object", "read_tokenizer", "read_weights"]

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

Rename = tuple[str, tuple[str, ...]]
"""Our parameter's name, and the checkpoint's names whose tensors make it, stacked in this order. ``{n}`` stands for
each layer's number."""


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


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, by its name there.

    Raises:
        InputError: the file is truncated, pickled or cannot be read.
    """
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


def fill(
    model: nn.Module, tensors: Mapping[str, Tensor], renames: Sequence[Rename], *, layers: int, source: Path
) -> None:
    """Put a checkpoint's tensors into a model, in float32, each exactly once.

    Args:
        model: on any device, the meta device included; its parameters are replaced.
        tensors: by their names in the checkpoint.
        renames: an ordered table that makes every parameter of the model.
        layers: how many layers ``{n}`` runs over.
        source: named in errors.

    Raises:
        InputError: a tensor is missing, left over, of another shape than the model's, or not of finite numbers.
    """
    left = dict(tensors)
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for ours, theirs in _every_layer(renames, layers):
        parts = [left.pop(name, None) for name in theirs]
        missing += [name for name, part in zip(theirs, parts, strict=True) if part is None]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            state[ours] = _stack(found, theirs, model.get_parameter(ours).shape, source)
    if missing:
        raise InputError(f"{source} lacks {_some(missing)}")
    if left:
        raise InputError(f"{source} holds weights that this model has no place for: {_some(sorted(left))}")
    model.load_state_dict(state, assign=True)


def _every_layer(renames: Sequence[Rename], layers: int) -> list[Rename]:
    every: list[Rename] = []
    for ours, theirs in renames:
        numbers = range(layers) if "{n}" in ours else range(1)
        every += [(ours.format(n=n), tuple(name.format(n=n) for name in theirs)) for n in numbers]
    return every


def _stack(parts: list[Tensor], names: tuple[str, ...], shape: torch.Size, source: Path) -> Tensor:
    expected = (shape[0] // len(parts), *shape[1:])
    for part, name in zip(parts, names, strict=True):
        if part.dtype not in FLOATS:
            raise InputError(f"{source}: {name} is {part.dtype}; regard reads {_some([str(d) for d in FLOATS])}")
        if tuple(part.shape) != expected:
            raise InputError(f"{source}: {name} has shape {tuple(part.shape)}, the config wants {expected}")
    # Always a copy: what was read is mapped from the file, and would change, or crash the process, when the file does.
    stacked = torch.cat([part.to(torch.float32) for part in parts])
    if stacked.numel() and not torch.stack(stacked.aminmax()).isfinite().all():
        raise InputError(f"{source} is damaged: {_some(names)} holds numbers that are not finite. Fetch it anew")
    return stacked


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
