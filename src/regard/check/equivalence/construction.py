"""What is compared: copies with parameters drawn at random, of classes objects of the same sizes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import nn

from regard.check.equivalence.call_search import call_plan
from regard.check.equivalence.projections import read_projections
from regard.check.sandbox.torch_settings import UserSettings
from regard.check.search.arrays import module_of_arrays
from regard.check.search.parameters import refuse_lazy
from regard.check.search.subject import with_signature
from regard.check.target.classes import method_of, parameters_of
from regard.check.target.construction import constructions
from regard.check.target.names import constructor_meaning
from regard.check.target.sizes import Sizes
from regard.errors import InputError

__all__ = ["Compared", "constructed"]

SIZES = tuple(
    Sizes(batch=2, tokens=5, context=7, heads=heads, kv_heads=kv_heads, d_head=width)
    for heads, kv_heads, width in ((4, 2, 6), (3, 3, 10), (8, 4, 8), (1, 1, 10))
)
"""Sizes to build both of, until both can be built."""


@dataclass(eq=False)
class Compared:
    """One of two that are compared."""

    name: str
    made: Any
    """A function, or a module; of a class it is constructed."""
    assumptions: list[str]
    """What its constructor was told."""
    sizes: Sizes | None
    """That it was constructed of."""


def constructed(several: Sequence[Any], args: Sequence[Mapping[str, Any]], settings: UserSettings) -> list[Compared]:
    """Two implementations as they are compared: objects of the same sizes of those that are classes.

    Raises:
        InputError: one of them is nothing that can be called, or cannot be constructed.
    """
    names = [each.__name__ if hasattr(each, "__name__") else type(each).__name__ for each in several]
    tried = SIZES
    made = next((each for each in several if isinstance(each, nn.Module)), None)
    if made is not None and any(map(inspect.isclass, several)):
        found = read_projections(call_plan(type(made).__name__, made, None, settings))
        heads, width = found.heads, found.q.weight.shape[1]
        kv_heads = heads // 2 if heads % 2 == 0 else heads
        tried = (Sizes(batch=2, tokens=5, context=7, heads=heads, kv_heads=kv_heads, d_head=width),)
    failed: InputError | None = None
    for sizes in tried:
        try:
            compared = [
                Compared(name, *_made(each, given, sizes, settings))
                for name, each, given in zip(names, several, args, strict=True)
            ]
        except InputError as error:
            failed = failed or error
            continue
        for each in compared:
            if isinstance(each.made, nn.Module):
                refuse_lazy(each.made)
        return compared
    assert failed is not None
    raise failed


def _made(
    implementation: Any, args: Mapping[str, Any], sizes: Sizes, settings: UserSettings
) -> tuple[Any, list[str], Sizes | None]:
    if not inspect.isclass(implementation):
        if not callable(implementation):
            raise InputError(f"{implementation!r} is not a function, class or module")
        if args and isinstance(implementation, nn.Module):
            name = type(implementation).__name__
            raise InputError(f"{name} is already constructed and takes no arguments: {sorted(args)}")
        function = with_signature(implementation)
        return (partial(function, **args) if args else function), [], None
    sizes, kind = sizes.with_arguments(args), cast(type, implementation)
    left_out = {  # heads that each have keys of their own
        name: None
        for name, each in parameters_of(kind).items()
        if each.default is None and constructor_meaning(name) == "kv_heads"
    }
    _, made, said = next(constructions(implementation, {**left_out, **args}, sizes, settings))
    if not isinstance(made, nn.Module):
        call = method_of(made)
        made = module_of_arrays(made, call) or call
    return made, said, sizes
