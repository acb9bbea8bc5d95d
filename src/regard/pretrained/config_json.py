"""The values of a config.json; every error names the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from regard.attention.validation import MAX_FLOAT32
from regard.errors import InputError


@dataclass(frozen=True)
class ConfigJSON:
    """The values of a ``config.json`` or a ``preprocessor_config.json``, with defaults for the keys that it lacks."""

    values: Mapping[str, Any]
    path: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The family's own values for missing keys."""

    def __getitem__(self, key: str) -> Any:
        """The value of a key.

        Raises:
            InputError: the file lacks the key, and there is no default.
        """
        if key in self.values:
            return self.values[key]
        if key not in self.defaults:
            raise InputError(f"{self.path} lacks the setting {key!r}")
        return self.defaults[key]

    def get(self, key: str) -> Any:
        """The value of a key; None where the file and the defaults lack it."""
        return self.values.get(key, self.defaults.get(key))

    def positive_int(self, key: str, *, maximum: int = 2**31) -> int:
        """A value that counts something.

        Raises:
            InputError: the value is missing, no whole number, below 1 or above the maximum.
        """
        value = self[key]
        if type(value) is not int or not 1 <= value <= maximum:
            self.refuse(key, f"it must be a whole number from 1 to {maximum}")
        return int(value)

    def numbers(self, key: str, count: int) -> tuple[float | int, ...]:
        """So many finite numbers, from a list or from one number for all.

        Raises:
            InputError: the value is missing, or something else.
        """
        value = self[key]
        numbers = value if isinstance(value, list) else [value] * count
        if len(numbers) != count or any(type(n) not in (int, float) or not abs(n) <= MAX_FLOAT32 for n in numbers):
            self.refuse(key, "it must be a finite number" + (f", or a list of {count}" if count > 1 else ""))
        return tuple(numbers)

    def boolean(self, key: str) -> bool:
        """A value that is true or false.

        Raises:
            InputError: the value is missing, or neither true nor false.
        """
        value = self[key]
        if not isinstance(value, bool):
            self.refuse(key, "it must be true or false")
        return bool(value)

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise the error of a value that cannot be used.

        Raises:
            InputError: always.
        """
        raise InputError(f"{self.path}: {key} is {self.get(key)!r}; {reason}")
