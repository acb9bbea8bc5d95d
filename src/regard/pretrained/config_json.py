"""A config.json as it is read: no setting overlooked, every refusal with the file and the setting in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import InputError

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The settings of a ``config.json``, with what the family's own code takes where the file says nothing."""

    values: Mapping[str, Any]
    source: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """A setting's value.

        Raises:
            InputError: the file does not say it, and there is no default.
        """
        if name in self.values:
            return self.values[name]
        if name not in self.defaults:
            raise InputError(f"{self.source} lacks the setting {name!r}")
        return self.defaults[name]

    def get(self, name: str) -> Any:
        """A setting's value; None where there is none."""
        return self.values.get(name, self.defaults.get(name))

    def whole(self, name: str, *, most: int = 2**31) -> int:
        """A setting that counts something.

        Raises:
            InputError: it is missing, no whole number, below 1 or above the most.
        """
        value = self[name]
        if type(value) is not int or not 1 <= value <= most:
            self.refuse(name, f"it must be a whole number from 1 to {most}")
        return int(value)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Say that a setting cannot be used.

        Raises:
            InputError: always.
        """
        raise InputError(f"{self.source}: {name} is {self.get(name)!r}; {why}")
