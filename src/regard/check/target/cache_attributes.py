"""Caches that a caller makes of what a module keeps of a call in its attributes, and hands back in a dict."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.preparation import modules_in

__all__ = ["CacheOfAttributes", "names_of_attributes"]


def names_of_attributes(target: Any, argument: str) -> tuple[str, ...]:
    """The names by which code reads a dict, and writes its attributes alone, as k in cache["self"]["k"] and self.k = k.

    Args:
        target: what is called.
        argument: that the dict is handed over by.
    """
    owner = next(iter(modules_in(target)), None)
    source = "" if owner is None else "\n\n".join(map(source_of, own_classes(type(owner))))
    read = rf"\b{re.escape(argument)}(?:\[[^\]]+\])?\[['\"](\w+)['\"]\]"
    found = tuple(dict.fromkeys(re.findall(read, source)))
    is_written = re.search(rf"{read}\s*=(?!=)", source) is not None
    kept = [re.findall(rf"\bself\.{each}\s*=\s*(\w+)", source) for each in found]
    joined = rf"=\s*torch\.(?:cat|concat)\([^\n]*\b{re.escape(argument)}\b"
    # Else it keeps the new tokens alone, and its caller joins them.
    are_joined = any(re.search(rf"\b{each}\s*{joined}", source) for several in kept for each in several)
    return found if not is_written and all(kept) and are_joined else ()


class CacheOfAttributes:
    """What makes such a dict for a target, empty as long as the target has not been called."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.owner: Any = None

    def install(self, target: Any) -> None:
        """Take the attributes of this target from now on."""
        self.owner = next(iter(modules_in(target)))

    def make(self) -> dict[str, Any]:
        """The dict."""
        return _Kept(self.names, self.owner)


class _Kept(dict[str, Any]):
    """A dict of what a module keeps by some names; under any other name are all of these, or None before the first."""

    def __init__(self, names: tuple[str, ...], owner: Any) -> None:
        super().__init__()
        self._names, self._owner = names, owner

    def __getitem__(self, name: str) -> Any:
        if name in self._names:
            return getattr(self._owner, name, None)
        return self if self.values() else None

    def __contains__(self, name: object) -> bool:
        return self[str(name)] is not None

    def __bool__(self) -> bool:
        return bool(self.values())

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        found = self[name]
        return default if found is None else found

    def values(self) -> list[Tensor]:  # type: ignore[override]
        """What is kept."""
        several = (getattr(self._owner, each, None) for each in self._names)
        return [each for each in several if isinstance(each, Tensor)]
