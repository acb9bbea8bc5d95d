"""What an explanation that was read from a file must hold before anything is drawn from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

BIASES = ("ALiBi", "T5Relative")
"""The biases by position that an explanation names."""

PER_PIECE_AND_KEY = ("scores", "scaled", "capped", "biased", "allowed", "weights")
"""The row's tensors with a number for each token of the word and each key."""


def validate_explanation(e: Any) -> None:
    """Refuse fields of another type, and positions and tensors that do not fit one another.

    Args:
        e: the `Explanation`, whose module imports this one.

    Raises:
        ValueError: the field that does not fit.
    """
    _require_types(e)
    pieces, keys = len(e.word.token_index), len(e.keys.tokens)
    for name, text in (("queries", e.queries), ("keys", e.keys)):
        if not len(text.tokens) == len(text.ids) == len(text.surface_forms):
            raise ValueError(f"{name} has lists of different lengths")
    for name, positions in (("token_index", [e.word.token_index]), ("occurrences", e.word.occurrences)):
        for position in (each for part in positions for each in part):
            _require_below(name, position, len(e.queries.tokens))
    if not e.word.token_index:
        raise ValueError("token_index is empty")
    _require_below("layer", e.layer, e.model.num_layers)
    _require_below("head", e.head, e.model.num_heads)
    for key in (*e.top_keys, *([e.content_head] if e.content_head else [])):
        _require_below("index", key.index, keys)
        _require_below("layer", key.layer, e.model.num_layers)
        _require_below("head", key.head, e.model.num_heads)
    if e.decoder_inputs is not None and len(e.decoder_inputs) != len(e.queries.tokens):
        raise ValueError(f"decoder_inputs has {len(e.decoder_inputs)} tokens, and the target {len(e.queries.tokens)}")
    row = e.row
    for name in PER_PIECE_AND_KEY:
        _require_shape(name, getattr(row, name), (pieces, keys))
    if not bool(((row.weights >= 0) & (row.weights <= 1.001)).all()):
        raise ValueError("weights are no probabilities")
    _require_shape("q", row.q, (pieces, row.k.shape[-1]))
    _require_shape("k", row.k, (keys, row.q.shape[-1]))
    _require_shape("output", row.output, (pieces, row.v.shape[-1]))
    _require_shape("v", row.v, (keys, row.output.shape[-1]))
    if [len(output) for output in e.proof.model_output] != [row.v.shape[-1]] * pieces:
        raise ValueError("model_output has another shape than the row's output")
    for name in ("token", "position", "token_type", "sum", "normed"):
        _require_shape(name, getattr(e.input, name), (pieces, e.input.token.shape[-1]))
    if e.variant.bias not in (None, *BIASES):
        raise ValueError(f"bias is {e.variant.bias!r}")
    if len(e.input.shape) != 2:
        raise ValueError(f"shape is {e.input.shape!r}")


def _require_types(value: Any) -> None:
    hints = get_type_hints(type(value))
    for each in fields(value):
        part = getattr(value, each.name)
        if not _is_of(part, hints[each.name]):
            raise ValueError(f"{each.name} is {part!r}")


def _is_of(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type; a whole number is a float, and True is no number."""
    if is_dataclass(hint):
        _require_types(value)
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(_is_of(value, each) for each in get_args(hint) if value is None or each is not NoneType)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_is_of(item, *get_args(hint)) for item in value)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if hint in (int, str, bool, NoneType):
        return type(value) is hint
    return isinstance(value, Tensor) and bool(value.isfinite().all())  # annotated with its axes


def _require_below(name: str, position: int, count: int) -> None:
    if not 0 <= position < count:
        raise ValueError(f"{name} is {position}, of {count}")


def _require_shape(name: str, t: Tensor | None, shape: Sequence[int]) -> None:
    if t is not None and tuple(t.shape) != tuple(shape):
        raise ValueError(f"{name} has the shape {tuple(t.shape)}, not {tuple(shape)}")
