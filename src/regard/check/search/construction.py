"""Modules of the sizes that are wanted, and objects that keep arrays of numpy as such."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from regard.check.names import SIZES, meaning
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.layouts import Sizes
from regard.check.target.construction import constructions
from regard.check.target.preparation import require_cpu
from regard.check.target.sizes import Sizes as TargetSizes
from regard.errors import InputError

__all__ = ["UnknownArgument", "constructed"]


class UnknownArgument(InputError):
    """An argument of a constructor whose meaning no name tells here."""

    def __init__(self, name: str, kind: type) -> None:
        super().__init__(f"{kind.__name__} takes {name}, which has no known meaning: give --arg {name}=VALUE")
        self.name = name


def constructed(
    implementation: type,
    sizes: Sizes,
    args: Mapping[str, Any],
    settings: UserSettings,
    as_module: Callable[[Any], nn.Module | None] = lambda made: made,
) -> tuple[nn.Module, list[str]]:
    """A module of the sizes that are wanted, and what was guessed for it.

    Raises:
        InputError: an argument without a known meaning, a constructor that raises, or nothing that is a module.
    """
    parameters = inspect.signature(implementation).parameters
    for name, each in parameters.items():
        is_asked = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        if is_asked and name not in args and meaning(name, SIZES) is None:
            raise UnknownArgument(name, implementation)
    kv_heads = sizes.heads // 2 if sizes.heads % 2 == 0 else sizes.heads
    wanted = TargetSizes(sizes.batch, sizes.queries, sizes.keys, sizes.heads, kv_heads, sizes.d_key)
    of_values = {
        name: sizes.d_value
        for name in parameters
        if sizes.d_value != sizes.d_key and meaning(name, SIZES) == "d_head" and "v" in name.lower()
    }
    _, made, said = next(constructions(implementation, {**of_values, **args}, wanted, settings))
    module = as_module(made)
    if module is None:
        raise InputError(f"{implementation.__name__} is not a torch.nn.Module, and keeps no arrays")
    if "_parameters" not in vars(module):
        raise InputError(f"the constructor of {implementation.__name__} does not call super().__init__()")
    require_cpu(module)
    return module, said
