"""Caches of keys and values that are handed over whole: two tensors, which a call writes into at some places."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from regard.check.target.draft import Draft
from regard.check.target.names import constructor_meaning
from regard.check.target.sizes import Sizes

__all__ = ["buffer_candidates", "buffers", "is_filled"]


@cache
def is_filled(source: str, name: str) -> bool:
    """Whether the code asks whether an argument has a key, and writes there: an empty dict is one."""
    name = re.escape(name)
    return re.search(rf"\b{name}\[[^\]]+\]\s*=[^=]", source) is not None and bool(re.search(rf"\bin {name}\b", source))


def buffer_candidates(source: str, name: str) -> dict[str, Callable[[Draft], Any]]:
    """An empty dict, or two tensors of zeros, with as many places as tokens; none where the code fills neither.

    Args:
        source: the text of the code.
        name: of the argument.
    """
    if is_filled(source, name):
        return {"empty": lambda draft: {}}
    axis = _axis_of_places(source, name)
    return {"two buffers": partial(_buffers, axis=axis)} if axis is not None else {}


@cache
def _axis_of_places(source: str, name: str) -> int | None:
    """The axis that the first of two tensors, which an argument has, is written to by places; None where it is not."""
    if "index_copy" not in source:
        return None
    parts = re.search(rf"^\s*\(?(\w+)\s*,\s*\w+\)?\s*=\s*{re.escape(name)}\s*(?:#.*)?$", source, re.M)
    written = re.search(rf"\b{parts[1]}\.index_copy_?\(\s*(?:dim\s*=\s*)?(\d)", source) if parts is not None else None
    return int(written[1]) if written is not None else None


def buffers(source: str, name: str, sizes: Sizes) -> list[Callable[[], tuple[Tensor, Tensor]]]:
    """What makes two tensors of zeros, where an argument that may be left out is written to by places; none elsewhere.

    Args:
        source: the text of the code.
        name: of the argument.
        sizes: of the call.
    """
    axis = _axis_of_places(source, name)
    if axis is None:
        return []
    of_places = (sizes.kv_heads, sizes.tokens) if axis == 2 else (sizes.tokens, sizes.kv_heads)
    shape = (sizes.batch, *of_places, sizes.d_head)
    return [lambda: (torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))]


def _buffers(draft: Draft, *, axis: int) -> tuple[Tensor, Tensor]:
    """Keys and values, whose places are an axis; beside it stand the heads."""
    heads, width = _told(draft, "kv_heads", draft.sizes.kv_heads), _told(draft, "d_head", draft.d_head)
    sizes = (heads, draft.tokens) if axis == 2 else (draft.tokens, heads)
    shape, dtype = (draft.sizes.batch, *sizes, width), draft.draw(1).dtype
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def _told(draft: Draft, means: str, otherwise: int) -> int:
    """The number that the target keeps under a name of that meaning."""
    kept = getattr(draft.target, "__dict__", {})
    found = (each for name, each in kept.items() if type(each) is int and constructor_meaning(name) == means)
    return next(found, otherwise)
