"""What a file makes the parameters of its functions with, as init_params(dim) for attention(params, x)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target.argument import source_of
from regard.check.target.names import constructor_meaning
from regard.check.target.usage import fields_of

__all__ = ["made_parameters"]

_PARAMETERS = re.compile(r"p|params?|parameters|weights|theta")
"""Names of an argument that holds all that a function has learned."""
_MAKER = re.compile(r"_*(?:init(?:iali[sz]e)?|make|create|new|build)(?:_\w+)*|\w+_init|\w+_params|\w+_parameters")
"""Names of functions that make such."""
_SIZES = {"d_model": 24, "heads": 4, "d_head": 6, "d_ff": 48, "layers": 1, "length": 16, "vocab": 11}
"""What they are told, by the meaning of their arguments."""


def made_parameters(function: Any, settings: UserSettings) -> dict[str, Any]:
    """The argument of a function that holds its parameters, made by another function of its file; empty without one.

    Args:
        function: takes all that it has learned as one argument.
        settings: PyTorch's settings meanwhile.
    """
    parameters = inspect.signature(function).parameters
    names = [
        each.name for each in parameters.values() if each.default is each.empty and _PARAMETERS.fullmatch(each.name)
    ]
    if len(names) != 1 or len(parameters) < 2:
        return {}
    fields = set(fields_of(source_of(function), names[0]))
    for maker_name, maker in list(function.__globals__.items()):
        is_own = inspect.isfunction(maker) and maker.__module__ == function.__module__ and maker is not function
        if not is_own or not _MAKER.fullmatch(maker_name):
            continue
        sizes = _sizes_of(maker)
        if sizes is None:
            continue
        try:
            with settings.on():
                made = maker(**sizes)
        except Exception:  # the user's own may raise anything
            continue
        leaves = tree_leaves(made)
        if (
            isinstance(made, Mapping)
            and fields <= {*made}
            and leaves
            and all(isinstance(each, Tensor) for each in leaves)
        ):
            return {names[0]: dict(made)}
    return {}


def _sizes_of(maker: Any) -> dict[str, int] | None:
    """What a function is told that needs sizes alone; None where it needs anything else."""
    needed = [each for each in inspect.signature(maker).parameters.values() if each.default is each.empty]
    found = {each.name: _SIZES.get(constructor_meaning(each.name) or "") for each in needed}
    known = {name: size for name, size in found.items() if size is not None}
    return known if len(known) == len(found) else None
