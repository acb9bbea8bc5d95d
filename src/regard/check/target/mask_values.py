"""Masks in every form in which they are written, and in every shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.check.target.draft import Draft

__all__ = [
    "HEADS_LAST",
    "MASK_FORMS",
    "OF_EACH_TOKEN",
    "PADDING_SHAPES",
    "SCORE_SHAPES",
    "TRIED_FORMS",
    "of_asking",
    "of_keys_first",
    "open_mask",
    "write_mask",
]

MASK_FORMS = ("allowed", "added", "blocked", "keep", "keep, whole", "block", "block, whole")
"""True means allowed; 0 and -inf are added; True means blocked; 1 means allowed, as float and as int; 1 means blocked,
as float and as int."""
TRIED_FORMS = MASK_FORMS[:4]
"""Of those that cannot be told apart by whether a call runs, one each."""
HEADS_LAST = "qk1"
"""Of a mask for all samples and heads, which stand behind: of one graph, or of tokens that come first."""
OF_EACH_TOKEN = "bk1"
"""Of a mask that the channels of a token are multiplied by as well."""
SCORE_SHAPES = ("qk", "b1qk", "b11k", "bqk", "11qk", "bk", "b1k", "bhqk", "bqkh", "kb", OF_EACH_TOKEN, HEADS_LAST)
PADDING_SHAPES = ("bk", "b11k", "b1k", "b1qk", "bqk", "qk", "kb", OF_EACH_TOKEN)
_OF_THEMSELVES = re.compile(r"(?:self|slf|tgt|trg|target|dec(?:oder)?)_(?!mem|src|source|enc|ctx|context|cross)")
"""How the name of a mask begins by which the tokens that ask hide one another, as of a decoder's first attention."""


def open_mask(draft: Draft, form: str, shape: str, name: str) -> Any:
    """A mask that lets every query attend to every key."""
    size = {
        "b": draft.sizes.batch,
        "h": draft.sizes.heads,
        "q": draft.tokens,
        "k": draft.tokens if _OF_THEMSELVES.match(name.lower()) else draft.keys,
        "1": 1,
    }
    return write_mask(torch.ones([size[letter] for letter in shape], dtype=torch.bool), form)


def of_keys_first(several: list[str]) -> list[str]:
    """Masks beside a state that may ask: those of its keys alone come first, unless something tells their axes.

    Args:
        several: the candidates by name, in which what is told stands first.
    """
    if f"{MASK_FORMS[0]} {SCORE_SHAPES[0]}" not in several[:2]:
        return several
    of_keys = [f"{form} {shape}" for form in MASK_FORMS for shape in ("kb", "bk")]
    found = sorted(several, key=lambda one: of_keys.index(one) if one in of_keys else len(of_keys))
    return sorted(found, key=lambda one: one != "none")


def of_asking(name: str) -> Iterator[tuple[str, Callable[[Draft], Tensor]]]:
    """Masks by which no token of the sequence that asks is padding; of two readings the likelier one comes first.

    Args:
        name: of the argument.
    """
    is_of_padding = "pad" in name.lower()
    yield f"all {not is_of_padding}", partial(_of_asking_tokens, marked=not is_of_padding)
    yield f"all {is_of_padding}", partial(_of_asking_tokens, marked=is_of_padding)


def _of_asking_tokens(draft: Draft, marked: bool) -> Tensor:
    return torch.full((draft.sizes.batch, draft.tokens), marked)


def write_mask(allowed: Tensor, form: str) -> Tensor:
    """A mask of True (allowed) and False in one of `MASK_FORMS`."""
    if form == "added":
        return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    marked = ~allowed if form.startswith("block") else allowed
    if form.endswith("whole"):
        return marked.long()
    return marked.to(torch.float64) if form in ("keep", "block") else marked
