"""Caches that are dicts by modules: hooks at the projections of keys and values write into them, as Whisper's do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.check.target.argument import source_of
from regard.check.target.classes import own_classes
from regard.check.target.preparation import modules_in

__all__ = ["CacheOfHooks", "names_of_hooked"]


def names_of_hooked(target: Any, argument: str) -> tuple[str, ...]:
    """The attributes by which code reads a dict, and writes nothing into it, as key in kv_cache[self.key].

    Args:
        target: what is called.
        argument: that the dict is handed over by.
    """
    found: dict[str, None] = {}
    for owner in modules_in(target):
        kinds = dict.fromkeys(kind for each in owner.modules() for kind in own_classes(type(each)))
        for text in map(source_of, kinds):
            read = rf"\b{re.escape(argument)}\[self\.(\w+)\]"
            if re.search(rf"{read}\s*=(?!=)", text):
                return ()
            found.update(dict.fromkeys(re.findall(read, text)))
    return tuple(found) if any(True for _ in _hooked(target, tuple(found))) else ()


def _hooked(target: Any, names: tuple[str, ...]) -> Iterator[nn.Module]:
    for owner in modules_in(target):
        for each in owner.modules():
            parts = map(each._modules.get, names)
            yield from (part for part in parts if isinstance(part, nn.Linear))


class CacheOfHooks:
    """A dict of what each projection returned, the new tokens behind the others, and the hooks that keep it so.

    A projection returns what is kept of it: all tokens so far.
    """

    def __init__(self, names: tuple[str, ...], axis: int) -> None:
        self.names = names
        self.axis = axis
        """Of the tokens in what a projection returns."""
        self.kept: dict[nn.Module, Tensor] = {}

    def install(self, target: Any) -> None:
        """Put hooks that write into an empty dict at the projections of a target."""
        self.kept = {}
        for each in _hooked(target, self.names):
            each.register_forward_hook(self._keep)

    def make(self) -> dict[nn.Module, Tensor]:
        """The dict that the hooks write into."""
        return self.kept

    def _keep(self, module: nn.Module, _: Any, output: Tensor) -> Tensor:
        before = self.kept.get(module)
        self.kept[module] = output if before is None else torch.cat([before, output], self.axis)
        return self.kept[module]
