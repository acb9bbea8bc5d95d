"""Token ids: drawn, and drawn anew; and which of them is padding."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.check.target.names import is_encoded
from regard.check.target.preparation import modules_in

__all__ = [
    "drawn_ids",
    "ids_left_out",
    "is_candidate",
    "is_of_a_text",
    "other_ids",
    "padding_id",
    "side_of",
    "special_ids",
    "without",
]

USUAL_PADDING = 0
"""What padding is in most code."""
_PADDING = re.compile(r"(?:[a-z]+_)?pad(?:ding)?_?(?:idx|id|index|token|token_id|token_idx|symbol)", re.I)
_CONSTANT = re.compile(r"(?:[A-Z]+_)?PAD(?:DING)?(?:_?(?:IDX|ID|INDEX|TOKEN|TOKEN_ID|SYMBOL))?")
"""Names of the id of padding, of attributes and of a file's own constants."""

_SUFFIX = r"(?:_?(?:idx|id|index|token|token_id|token_idx|symbol))?"
_ENDS, _BEGINS = (
    re.compile(rf"_*(?:[a-z]+_)?(?:{names}){_SUFFIX}", re.I)
    for names in (r"eos|eot|eod|end_of_(?:text|document|sequence|sentence)", r"bos|bod|begin_of_(?:text|document)")
)
"""Names of the ids of the tokens that close a text, and that begin one."""

_INPUTS = re.compile(r"^inputs?(?:_|$)", re.I)
_TARGET = re.compile(r"^(?:tgt|trg|target|dec(?:oder)?|outputs?)(?:_|$)", re.I)
"""Names of what is translated, beside those of an encoder's sequence, and of its translation."""

_CANDIDATES = re.compile(r"(?:cand\w*|items?)(?:_(?:ind\w*|idxs?|ids?|items?))?", re.I)
"""In a recommender: what is scored for every sample, as item_indices."""


def is_candidate(name: str) -> bool:
    """Whether ids of this name may be items that are scored, the same for all samples, and no sequence."""
    return _CANDIDATES.fullmatch(name) is not None


def side_of(name: str) -> int:
    """1 for what is translated, as src or encoder_input, -1 for its translation, 0 where the name tells neither."""
    return bool(is_encoded(name) or _INPUTS.search(name)) - bool(_TARGET.search(name))


def padding_id(target: Any, text: str = "") -> int:
    """The id of padding, which no other token has, or it would be masked; 0 where nothing says another one.

    Args:
        target: a module whose attributes, config, embeddings or file may say it, or anything else.
        text: the name of a sequence: of several ids it has the one that is told for its side, as trg the trg_pad_idx.
    """
    told = [each for module in modules_in(target) for part in module.modules() for each in _told_by(part)]
    found = {number for _, number in told}
    if len(found) > 1 and (side := side_of(text)):
        found = {number for name, number in told if side_of(name) == side}
    return found.pop() if len(found) == 1 else USUAL_PADDING


def is_of_a_text(name: str) -> bool:
    """Whether a name is that of the token that closes a text, or that begins one, as eos_id or BOS."""
    return _ENDS.fullmatch(name) is not None or _BEGINS.fullmatch(name) is not None


def special_ids(target: Any, kind: Literal["end", "begin"]) -> set[int]:
    """The ids that a module, its config or its file tell for the token that closes a text, or that begins one."""
    names = _ENDS if kind == "end" else _BEGINS
    parts = (part for module in modules_in(target) for part in module.modules())
    return {number for part in parts for name, number in _numbers(part, names, names)}


def _told_by(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Each id of padding that a module tells, with the name that it tells it by."""
    yield from _numbers(module, _PADDING, _CONSTANT)


def _numbers(module: nn.Module, names: re.Pattern[str], constants: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """The whole numbers of some names that a module or its config keep, and those of its file's constants."""
    config = getattr(module, "config", None)
    told = config if isinstance(config, dict) else getattr(config, "__dict__", {})
    said = ((str(name), value) for name, value in [*vars(module).items(), *told.items()])
    yield from ((name, value) for name, value in said if type(value) is int and names.fullmatch(name))
    known = getattr(type(module).forward, "__globals__", {}) if not type(module).__module__.startswith("torch.") else {}
    yield from ((name, value) for name, value in known.items() if type(value) is int and constants.fullmatch(name))


def ids_left_out(target: Any, source: str, name: str) -> frozenset[int]:
    """The ids that the code takes out of a text, where it is told the one that closes it: none is drawn.

    As by ids[ids != self.eos_id]: texts with more of them than others would be of other lengths.
    """
    named = re.escape(name)
    compared = re.findall(rf"\b{named}\s*(?:==\s*|\.eq\(\s*)(\w+)", source)
    if compared and inspect.isroutine(target):  # texts of a row that begin or end there: one text is drawn
        known = {each.name: each.default for each in inspect.signature(target).parameters.values()}
        known = getattr(target, "__globals__", {}) | known
        return frozenset(known[each] for each in compared if is_of_a_text(each) and type(known.get(each)) is int)
    is_cut = re.search(rf"\b{named}\[\s*{named}\s*!=[^\[\]]*\]", source) is not None
    return frozenset(special_ids(target, "end")) if is_cut else frozenset()


def without(ids: Tensor, left_out: Collection[int], padding: int, vocab: int) -> Tensor:
    """The ids, with another one for each that is left out."""
    kept = [each for each in range(1, vocab) if each not in left_out and each != padding]
    for each in left_out if kept else ():
        ids = torch.where(ids == each, min(kept, key=lambda other: abs(other - each)), ids)
    return ids


def drawn_ids(shape: tuple[int, ...], vocab: int, generator: torch.Generator, padding: int = USUAL_PADDING) -> Tensor:
    """Ids of tokens that are no padding."""
    return _exchanged(torch.randint(1, vocab, shape, generator=generator) % vocab, padding, vocab)


def other_ids(ids: Tensor, vocab: int, generator: torch.Generator, padding: int = USUAL_PADDING) -> Tensor:
    """Another id for each token; no padding where there was none.

    Args:
        ids: of any integer type.
        vocab: how many there are; where that is not known, 0: then one more than the largest of them.
        generator: of the random numbers.
        padding: the id of padding.
    """
    vocab = max(2, vocab or int(ids.max()) + 1)
    ids = _exchanged(ids, padding, vocab)
    least = 0 if vocab == 2 or bool((ids == USUAL_PADDING).any()) else 1
    moved = torch.randint(1, vocab - least, ids.shape, generator=generator).to(ids.dtype)
    return _exchanged((ids - least + moved) % (vocab - least) + least, padding, vocab)


def _exchanged(ids: Tensor, padding: int, vocab: int) -> Tensor:
    """The ids, with the one of padding and the one that is usual for it exchanged, where there are so many."""
    if padding == USUAL_PADDING or not 0 <= padding < vocab:
        return ids
    exchanged = torch.where(ids == padding, USUAL_PADDING, ids)
    return torch.where(ids == USUAL_PADDING, padding, exchanged)
