"""`Fields`: the JSON object of a request, read field by field; every wrong one is refused by its name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

from regard.errors import InputError, short_repr

Value = TypeVar("Value")

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can name one; no text of UTF-8 has it, and no tokenizer reads it."""

MAX_REPR = 40
"""The characters of a wrong value that a message repeats."""


def parse_object(body: bytes) -> Any:
    """The JSON of a request.

    Raises:
        InputError: no JSON; NaN or infinity, which JSON does not have.
    """
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"the body of the request is not JSON in UTF-8: {reason}", "body") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class Fields:
    """The fields of a JSON object. `finish` refuses those that nobody read.

    Args:
        value: what should be an object.
        path: its place in the request, such as ``edits[0]``; "" for the whole.

    Raises:
        InputError: it is no object.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        self.path = path
        if not isinstance(value, dict):
            raise self.error("", "an object", value)
        self._values = dict(value)

    def text(self, name: str, max_length: int) -> str:
        """A text.

        Raises:
            InputError: another value, or a text that is too long.
        """
        return self._text(name, self._take(name), max_length)

    def texts(self, name: str, counts: range, max_length: int) -> tuple[str, ...]:
        """A list of so many texts."""
        values = self._list(name, counts, "texts")
        return tuple(self._text(f"{name}[{n}]", value, max_length) for n, value in enumerate(values))

    def optional_text(self, name: str, max_length: int) -> str | None:
        """A text, or null, which may be left out."""
        value = self._values.pop(name, None)
        return None if value is None else self._text(name, value, max_length)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some words."""
        value = self._take(name)
        if value not in choices or not isinstance(value, str):
            raise self.error(name, f"one of {', '.join(map(repr, choices))}", value)
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number of a range, its ends included."""
        return self.as_whole(name, self._take(name), least, most)

    def optional_whole(self, name: str, least: int, most: int) -> int | None:
        """A whole number, or null, which may be left out."""
        value = self._values.pop(name, None)
        return None if value is None else self.as_whole(name, value, least, most)

    def number(self, name: str, least: float, most: float) -> float:
        """A number of a range, its ends included."""
        return self.as_number(name, self._take(name), least, most)

    def optional_number(self, name: str, least: float, most: float) -> float | None:
        """A number, or null, which may be left out."""
        value = self._values.pop(name, None)
        return None if value is None else self.as_number(name, value, least, most)

    def flag(self, name: str) -> bool:
        """True or false."""
        return self.as_flag(name, self._take(name))

    def items(self, name: str, counts: range, read: Callable[[Any, str], Value]) -> tuple[Value, ...]:
        """A list of so many items, each read by a function that gets it and its place; empty if it is left out."""
        self._values.setdefault(name, [])
        values = self._list(name, counts, "items")
        return tuple(read(value, self._at(f"{name}[{n}]")) for n, value in enumerate(values))

    def by_key(self, name: str, most: int, read: Callable[[str, Any], Value]) -> dict[int, Value]:
        """An object whose names are positions of keys; empty if it is left out.

        Args:
            name: of the field.
            most: the largest position.
            read: gets the place and the value of each entry.
        """
        values = self._values.pop(name, {})
        if not isinstance(values, dict):
            raise self.error(name, 'an object by key, such as {"3": ...}', values)
        found = {}
        for key, value in values.items():
            if not (key.isascii() and key.isdecimal() and len(key) < 8 and int(key) <= most):
                raise self.error(name, f"the positions of keys, 0 to {most}", key)
            found[int(key)] = read(f"{name}[{key}]", value)
        return found

    def part(self, name: str) -> Fields:
        """An object within."""
        return Fields(self._take(name), self._at(name))

    def finish(self) -> None:
        """Refuse what was not read.

        Raises:
            InputError: there is such a field.
        """
        if self._values:
            name = min(self._values)
            raise InputError(f"{self._at(short_repr(name, MAX_REPR))}: there is no such field", self._at("") or "body")

    def as_whole(self, name: str, value: Any, least: int, most: int) -> int:
        """A whole number of a range, for `items` and `by_key`."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(name, f"a whole number, {least} to {most}", value)
        return value

    def as_number(self, name: str, value: Any, least: float, most: float) -> float:
        """A number of a range, for `items` and `by_key`."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or not math.isfinite(value):
            raise self.error(name, f"a number, {least:g} to {most:g}", value)
        return float(value)

    def as_flag(self, name: str, value: Any) -> bool:
        """True or false, for `items` and `by_key`."""
        if not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def error(self, name: str, expected: str, value: Any) -> InputError:
        """The error of a wrong value."""
        place = self._at(name)
        got = short_repr(value, MAX_REPR) if isinstance(value, str) else _json_kind(value)
        return InputError(f"{place or 'the request'}: {expected}; got {got}", place or "body")

    def _take(self, name: str) -> Any:
        if name not in self._values:
            raise InputError(f"{self._at(name)} is missing", self._at(name))
        return self._values.pop(name)

    def _list(self, name: str, counts: range, what: str) -> list[Any]:
        values = self._take(name)
        if not isinstance(values, list) or len(values) not in counts:
            ends = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
            raise self.error(name, f"a list of {ends} {what}", values)
        return values

    def _text(self, name: str, value: Any, max_length: int) -> str:
        if not isinstance(value, str):
            raise self.error(name, "a text", value)
        if len(value) > max_length:
            raise InputError(
                f"{self._at(name)} has {len(value):,} characters, and {max_length:,} are the most: shorten it",
                self._at(name),
            )
        if LONE_SURROGATE.search(value):
            raise InputError(
                f"{self._at(name)}: {short_repr(value, MAX_REPR)} has half a character (a lone surrogate): remove it",
                self._at(name),
            )
        return value

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path and name else self.path or name


def _json_kind(value: Any) -> str:
    """A value that is no text in a few words, as JSON calls it."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    return "a long number" if isinstance(value, int) and abs(value) > 10**MAX_REPR else json.dumps(value)
