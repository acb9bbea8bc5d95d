"""A bank of attentions: each wrong in a known way, or right in a layout, a convention or a style of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from torch import nn

__all__ = ["Entry", "Projections", "entries", "right", "wrong"]


@dataclass(frozen=True)
class Entry:
    """One implementation, and what is to be said of it."""

    what: Any
    """A function or a class."""
    verdict: str
    """"wrong", "right", "convention" or "design"."""
    causes: tuple[str, ...] = ()
    """The ids of what is wrong with it."""
    source: str | None = None
    """Where it shipped, owner/name#number."""
    says: str | None = None
    """Words that the report must hold."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of its constructor that cannot be guessed."""
    dear: bool = False
    """Whether another entry shows its mistake, or that verdict of its file, in less time."""

    @property
    def name(self) -> str:
        """Module and name."""
        return f"{self.what.__module__.rpartition('.')[2]}.{self.what.__name__}"


class Projections(nn.Module):
    """For modules that differ in what they compute: linear layers for queries, keys, values and the output."""

    def __init_subclass__(cls, names: str, bias: bool = True) -> None:
        cls._names, cls._bias = names.split(), bias

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        for name in self._names:
            setattr(self, name, nn.Linear(d_model, d_model, bias=self._bias))


_ENTRIES: list[Entry] = []
_Any = TypeVar("_Any")


def wrong(
    cause: str,
    *,
    source: str | None = None,
    also: tuple[str, ...] = (),
    args: dict[str, Any] | None = None,
    says: str | None = None,
    dear: bool = False,
) -> Callable[[_Any], _Any]:
    """Enter an implementation that is wrong for one cause, or for several."""

    def enter(what: _Any) -> _Any:
        _ENTRIES.append(Entry(what, "wrong", (cause, *also), source, says, args or {}, dear))
        return what

    return enter


def right(
    verdict: str, *, says: str | None = None, args: dict[str, Any] | None = None, dear: bool = False
) -> Callable[[_Any], _Any]:
    """Enter an implementation that is right; verdict: "right", "convention" or "design"."""

    def enter(what: _Any) -> _Any:
        _ENTRIES.append(Entry(what, verdict, says=says, args=args or {}, dear=dear))
        return what

    return enter


def entries() -> list[Entry]:
    """All of them."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return list(_ENTRIES)
