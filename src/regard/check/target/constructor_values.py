"""Values to try for an argument of a constructor: of a known meaning, or of what its annotation and its name leave."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from regard.check.target.classes import parameters_of
from regard.check.target.configs import COUNT_WORDS, number
from regard.check.target.layouts import GRID
from regard.check.target.names import constructor_meaning
from regard.check.target.sizes import Sizes
from regard.check.target.usage import FEW_TOKENS, PARTS, divides, is_context, is_large_part, is_part, is_step

__all__ = [
    "ALWAYS",
    "DEFAULT",
    "NEVER_NONE",
    "annotated_values",
    "feed_forward",
    "known_values",
    "looked_up",
    "members",
    "norm_values",
    "number_values",
    "optional_values",
    "unknown_arguments",
]

ALWAYS = frozenset(
    ("d_model", "heads", "d_head", "length", "d_context", "d_ff", "vocab", "layers", "d_out", "batch", "image", "patch")
) | {"rotary", "rank", "landmarks", "latents", "d_latent", "frames"}
"""Sizes that replace the default of an optional argument, so that the target is small and its sizes differ."""
NEVER_NONE = ("d_model", "heads")
"""Sizes that no 0 says that there is nothing of, as it does of channels that are rotated."""
DEFAULT = object()
"""The argument is not given."""
SPATIAL = ("window", "image", "patch", "grid")
"""Meanings of which there may be one number, or one for the rows and one for the columns."""
HALF = 0.5
"""Of the channels of a head: what rotary positions turn, where less would be no pairs."""
_TURNED = re.compile(r"rot|rope", re.IGNORECASE)
_SEVERAL = re.compile(r"\b(list|tuple|sequence)\[(\s*int\b[^\[\]]*)\]", re.IGNORECASE)
_MADE_LATER = re.compile(r"\bCallable\b|\btype\[", re.IGNORECASE)


def known_values(means: str, name: str, annotation: str, source: str, sizes: Sizes) -> list[Any]:
    """For an argument whose meaning is known, the likeliest first.

    Args:
        means: as of `constructor_meaning`.
        name: of the argument.
        annotation: its text, which may ask for several numbers.
        source: the text of the class.
        sizes: of what is made.
    """
    value = number(means, name, sizes)
    if means == "d_head" and type(value) is int and _is_of_all_heads(source, name):
        return [value * sizes.heads, value]
    if means in ("scale", "temperature"):
        divided = re.search(rf"/\s*(?:self\.)?_?{re.escape(name)}\b", source) is not None
        multiplies = re.search(rf"\*\s*(?:self\.)?_?{re.escape(name)}\b", source) is not None
        root = sizes.d_head**0.5
        return [root if divided else 1 / root if multiplies else value]
    if type(value) in (int, tuple) and (several := _several(annotation, value)) is not None:
        return [several, value] if means != "grid" else [several, type(several)(GRID), value]
    if means in SPATIAL:
        side = value[0] if isinstance(value, tuple) else value
        return [value, GRID, side] if isinstance(value, tuple) else [value, (value, value)]
    if means == "length" and is_step(source, name):
        return [FEW_TOKENS, value]
    if means == "activation":
        return [nn.GELU, value] if _MADE_LATER.search(annotation) else [value, nn.GELU(), nn.GELU]
    if means == "layers":
        return [value, 1]
    if means == "stride":
        return [value, 2]
    if means == "dropout":
        return [value, 0.0]
    return [value]


def _is_of_all_heads(source: str, name: str) -> bool:
    """Whether it is a width that is divided by what a name counts, as dk by Nh: that of all heads together."""
    return re.search(rf"(?<![\w.])(?:self\.)?{re.escape(name)}\s*(?://|%)\s*[A-Za-z]", source) is not None


def annotated_values(annotation: str) -> list[Any]:
    """What an annotation alone leaves open; nothing of a class, a text or a single whole number."""
    if "bool" in annotation:
        return [False, True]
    if "float" in annotation:
        return [1.0, 0.0]
    several = _several(annotation, FEW_TOKENS)
    return [] if several is None else [several]


def number_values(name: str, source: str, sizes: Sizes) -> list[Any]:
    """For an argument of which nothing tells what it is: most are widths; what counts things is small."""
    values: list[Any] = [sizes.d_model, None, 2, False, True, sizes.heads, sizes.length]
    if is_part(source, name):
        values.insert(0, FEW_TOKENS)
    elif _is_block_of_context(source, name):
        values.insert(0, sizes.length)
    elif divides(source, name):
        values.insert(0, sizes.heads)
    elif name.lower().partition("_")[0] in COUNT_WORDS:
        values.insert(0, 2)
    return values


def optional_values(source: str, name: str, default: Any, sizes: Sizes) -> list[Any]:
    """For an argument that has a default and a name that says nothing: the default, if a small target can have it.

    Args:
        source: the text of the class.
        name: of the argument.
        default: its own.
        sizes: of what is made.
    """
    if is_large_part(source, name, default):
        return [FEW_TOKENS, DEFAULT]
    if type(default) is int and _is_block_of_context(source, name):
        return [sizes.length, DEFAULT]
    # Rotary positions turn pairs of channels: a share that leaves a small head an odd number is a matter of its size.
    if type(default) is float and 0 < default < 1 and _TURNED.search(name) and int(sizes.d_head * default) % 2:
        return [HALF, DEFAULT]
    return [DEFAULT]


def _is_block_of_context(source: str, name: str) -> bool:
    """Whether it is named as a part of a sequence, and is the largest length of the whole."""
    return PARTS.search(name.lower()) is not None and is_context(source, name)


def norm_values(annotation: str, sizes: Sizes) -> list[Any]:
    """A norm, or its class."""
    made = partial(nn.LayerNorm, sizes.d_model)
    return [nn.LayerNorm, made, None] if _MADE_LATER.search(annotation) else [made, nn.LayerNorm, None]


def feed_forward(sizes: Sizes) -> nn.Module:
    """What stands beside an attention in a layer."""
    return nn.Sequential(
        nn.Linear(sizes.d_model, 4 * sizes.d_model), nn.GELU(), nn.Linear(4 * sizes.d_model, sizes.d_model)
    )


def _several(annotation: str, value: Any) -> Any:
    """A list or a tuple of a number, where the annotation asks for one, and for no number alone; else None."""
    match = _SEVERAL.search(annotation)
    if match is None or re.search(r"\bint\b", annotation.replace(match[0], "")):
        return None
    kind = list if match[1].lower() == "list" else tuple
    count = len(match[2].split(",")) if kind is tuple and "..." not in match[2] else 2
    return kind(value) if isinstance(value, tuple) else kind([value] * count)


def members(name: str, parameter: inspect.Parameter, kind: type) -> list[Any]:
    """Of the enumeration that an argument is annotated with, or that its module has under the argument's name."""
    names = {name.replace("_", "").lower(), str(parameter.annotation).lower()}
    near = vars(sys.modules[kind.__module__]).values() if kind.__module__ in sys.modules else ()
    enumerations = [each for each in (parameter.annotation, *near) if isinstance(each, enum.EnumMeta)]
    return next(
        (list(each) for each in enumerations if each is parameter.annotation or each.__name__.lower() in names), []
    )


def looked_up(name: str, kind: type, source: str) -> list[str]:
    """The texts at which a table of the class's module has something, where the argument is looked up in it."""
    tables = re.findall(rf"\b(\w+)(?:\[|\.get\(|\.pop\()\s*{re.escape(name)}\s*[\],)]", source)
    near = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    found = [near[each] for each in tables if isinstance(near.get(each), Mapping)]
    return [key for table in found for key in table if isinstance(key, str)]


def unknown_arguments(kind: type, args: Mapping[str, Any]) -> list[str]:
    """The arguments that a constructor needs, that nobody gave, and whose names say nothing."""
    return [
        name
        for name, each in parameters_of(kind).items()
        if name not in args
        and each.default is inspect.Parameter.empty
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        and constructor_meaning(name) is None
    ]
