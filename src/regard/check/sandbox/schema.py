"""Dataclasses as JSON and back: every field is there and of its type, and no other is. Nothing that is read is run."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from json import dumps, loads
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["from_builtins", "from_json", "to_builtins", "to_json"]

T = TypeVar("T")

NOT_FINITE = ("inf", "-inf", "nan")
"""Numbers that JSON does not have, as the texts that `float` reads."""


def to_builtins(value: Any) -> Any:
    """A dataclass as dicts, lists, texts, numbers and None."""
    if is_dataclass(value):
        return {each.name: to_builtins(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [to_builtins(item) for item in value]
    if isinstance(value, dict):
        return {key: to_builtins(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def to_json(value: Any, indent: int | None = None) -> str:
    """A dataclass, or a plain value, as JSON.

    Raises:
        TypeError: a part is of another type than JSON has.
        ValueError: it holds itself.
    """
    return dumps(to_builtins(value), indent=indent, allow_nan=False)


def from_json(kind: type[T], text: str | bytes) -> T:
    """A dataclass that `to_json` wrote.

    Args:
        kind: its class; fields are texts, numbers, True and False, None, Literal, such dataclasses, tuples or lists of
            any length, unions with None, or Any. A whole number is a float, and True is no number.
        text: JSON.

    Raises:
        ValueError: it is no JSON, or a field is missing, unknown or of another type; the message names it.
    """
    try:
        value = loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return from_builtins(kind, value)


def from_builtins(kind: type[T], value: object) -> T:
    """`from_json`, of what the JSON holds."""
    made: T = _read(kind, value, "")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _read(hint: Any, value: Any, name: str) -> Any:
    if hint is Any:
        return value
    if is_dataclass(hint):
        return _read_fields(hint, value, name)
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):  # with None
        return None if value is None else _read(next(part for part in parts if part is not NoneType), value, name)
    if kind in (tuple, list) and type(value) is list:
        return kind(_read(parts[0], item, f"{name}[{number}]") for number, item in enumerate(value))
    if kind is Literal and type(value) is str and value in parts:
        return value
    if hint is str and type(value) is str:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")  # half a pair of surrogates cannot be printed
    if hint is float and (type(value) in (int, float) or value in NOT_FINITE):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if hint in (int, bool) and type(value) is hint:
        return value
    raise ValueError(f"{name or 'the whole'} is {_shown(value)}")


def _read_fields(kind: Any, value: Any, name: str) -> Any:
    if type(value) is not dict:
        raise ValueError(f"{name or 'the whole'} is {_shown(value)}")
    hints, before = get_type_hints(kind), f"{name}." if name else ""
    names = [each.name for each in fields(kind)]
    for field in names:
        if field not in value:
            raise ValueError(f"{before}{field} is missing")
    for field in value:
        if field not in names:
            raise ValueError(f"{before}{_shown(field)} is no field")
    return kind(**{field: _read(hints[field], value[field], before + field) for field in names})


def _shown(value: object) -> str:
    """The beginning of a value; a whole number of too many digits has no text."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of too many digits"
    return text if len(text) <= 60 else f"{text[:60]}..."
