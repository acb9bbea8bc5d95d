"""The axes that a sequence of tokens may have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.check.target.argument import DISTANCES, MATRICES, STREAMS, Argument, source_of
from regard.check.target.axes_inside import is_turned
from regard.check.target.documented_shapes import axes_of, documented_letters, first_documented_shape, letters_of
from regard.check.target.preparation import modules_in
from regard.check.target.time_series import TIME_MARKS
from regard.check.target.usage import squared
from regard.check.target.written_axes import written_map

__all__ = ["GRID", "Layout", "are_of_sentences", "is_documented", "layouts"]

GRID = (4, 6)
"""Height and width of a map of features: even, for those that halve it."""
_IMAGE = re.compile(r"\b(?:b|bs|n|batch|batch_size|B|N)\w*\s*,\s*(?:c|ch|channels|C)\w*\s*,\s*(?:h|height|H)\b")

_BATCH = re.compile(r"b|bs|bsz|batch(?:_?size)?", re.I)
_BATCH_OF = re.compile(r"(?:b|bs|bsz|(?:n_?|num_?)?(?:batch|docs?|documents|samples|examples))(?:_?size)?$", re.I)
_JOINS_FIRST = re.compile(r"\bcat\([^\n]*(?:(?:dim|axis)\s*=\s*|,\s*)0\s*\)")
"""What joins tensors along their first axis: beside vectors of distances that is the axis of the tokens."""
_HEADS = re.compile(r"(?:n|num)_?heads?|heads?", re.I)
_CHANNELS = re.compile(r"c|ch|chans?|(?:(?:in|n|num)_)?(?:channels?|features?)|dim|embed_dim|d_model", re.I)


@dataclass(frozen=True)
class Layout:
    """One letter an axis: b batch, h heads, t tokens, d width, y and x the rows and columns of an image, z frames.

    "c" is a second axis of width, "f" is heads and their widths side by side, "p" queries, keys and values as well; "3"
    and "2" are these as an axis, "1" one that is handed over with one slice: it stays apart as samples do.
    """

    letters: str
    sizes: tuple[tuple[str, int], ...] = ()
    """How long some axes are, where the documentation names them after what the target was made with."""

    @property
    def batch_axis(self) -> int | None:
        """None of one sequence."""
        return self._of("b")

    @property
    def head_axis(self) -> int | None:
        """None where there are no heads, or in the width."""
        return self._of("h")

    @property
    def token_axes(self) -> tuple[int, ...]:
        """Two of an image."""
        return tuple(index for index, letter in enumerate(self.letters) if letter in "tyxz")

    def _of(self, letter: str) -> int | None:
        found = self.letters.find(letter)
        return None if found < 0 else found


_VIDEO = re.compile(r"\b(?:b|n)\s*,?\s*(?:c|d)\s*,?\s*[tfd]\s*,?\s*h\s*,?\s*w\b", re.I)
"""The sides of a map of features, or those of a video, as the text names them."""


FUNCTIONS = ("bhtd", "btd", "td", "bthd", "tbhd", "htd", "btf", "tbd", "bdt", "bhdt", "thd")
MODULES = ("btd", "td", "tbd", "bdyx", "byxd", "bdt", "bhtd")
VIDEOS = ("bdzyx", "bzyxd")
PACKED = ("btp", "bpt", "bt3hd", "b3htd", "3bhtd", "bth3d", "t3hd", "bh3td")
"""Of queries, keys and values in one tensor."""
WEIGHTED = ("btd", "td", "tbd")


def layouts(target: Any, arguments: list[Argument]) -> list[Layout]:
    """The layouts that its sequences may have, the likeliest first."""
    roles = {each.role for each in arguments if each.required}
    inner = [each for module in modules_in(target) for each in module.modules()]
    parameters = any(parameter.ndim > 1 for each in inner for parameter in each.parameters(recurse=False))
    if "boundaries" in roles:
        letters: tuple[str, ...] = ("thd", "td", "btd") if {"q", "k", "v"} <= roles else ("td", "btd")
        letters = ("t3hd",) if "qkv" in roles else letters
    elif "qkv" in roles:
        letters = PACKED
    elif "image" in roles:
        letters = ("bdyx", "byxd", "btd", "dyx")
    elif "ids" in roles and "x" not in roles and not {"q", "k", "v"} <= roles:
        letters = ("btd", "td", "tbd")
        of_ids = [each.name for each in arguments if each.required and each.role == "ids"]
        if any(are_of_sentences(source_of(target), each) for each in of_ids):
            letters = ("byxd", *letters)  # as the words of the sentences of documents
    elif roles & MATRICES - {"w_o"}:
        letters = (*_written(target, arguments), *WEIGHTED)
    elif {"q", "k", "v"} <= roles and not parameters:
        letters = FUNCTIONS
        if any(each.role == "size heads" and each.required for each in arguments):
            letters = ("btf", *(each for each in letters if each != "btf"))
        elif any(_HEADS.fullmatch(names[0]) for names in _unpacked(source_of(target), arguments, 3)):
            letters = ("htd", *(each for each in letters if each != "htd"))
        elif any(_HEADS.fullmatch(names[1]) for names in _unpacked(source_of(target), arguments, len("bh1td"))):
            letters = ("bh1td", "bht1d", *letters)  # time steps and nodes, of which one are the tokens
    elif inner or "x" in roles:
        letters = MODULES if inner else (*MODULES, "bthd")
        named = _grid_behind_which_samples_stand(source_of(target), arguments)
        if named:
            letters = (named, *letters)
        elif any(isinstance(each, nn.Conv2d | nn.BatchNorm2d) for each in inner) or _is_map(source_of(target)):
            letters = ("bdyx", *(each for each in letters if each != "bdyx"))
        elif any(isinstance(each, nn.Conv1d | nn.BatchNorm1d) for each in inner):
            letters = ("btd", "bdt", *(each for each in letters if each not in ("btd", "bdt")))
        if _has_channels_last(source_of(target), arguments) and {"bdyx", "byxd"} <= {*letters}:
            at = letters.index("bdyx")
            letters = (*letters[:at], "byxd", *(each for each in letters[at:] if each != "byxd"))
        if DISTANCES in roles and _JOINS_FIRST.search(source_of(target)):
            letters = ("tbd", *(each for each in letters if each != "tbd"))
        if {"height", "width"} <= roles:  # beside its sides, a map is laid out as tokens
            letters = ("btd", *(each for each in letters if each != "btd"))
        asking = [each.name for each in arguments if each.required and each.role == "x"]
        if TIME_MARKS in roles and any(is_turned(target, each) for each in asking):  # series are the tokens
            letters = ("bdt", *(each for each in letters if each != "bdt"))
        if any(isinstance(each, nn.Conv3d | nn.BatchNorm3d) for each in inner) or _VIDEO.search(source_of(target)):
            letters = (*VIDEOS, *letters)
        written = _written(target, arguments)
        letters = (*written, *(each for each in letters if each not in written))
    else:
        letters = FUNCTIONS
    given = [each.name for each in arguments if each.required and each.role in STREAMS]
    nested = _rows_of_rows(target, given[0]) if len(given) == 1 else None
    return [*([] if nested is None else [nested]), *(Layout(each) for each in letters)]


def _written(target: Any, arguments: list[Argument]) -> tuple[str, ...]:
    """The layout of a map or a video that the documentation writes for its only sequence; none of others."""
    given = [each.name for each in arguments if each.required and each.role in STREAMS]
    written = written_map(source_of(target), given[0]) if len(given) == 1 else ""
    return (written,) if written else ()


def _rows_of_rows(target: Any, name: str) -> Layout | None:
    """Sequences of sequences whose vectors have two axes, as the documentation writes them: frames, each of tokens.

    As (batch_size, epochs_seq_len, seq_len, in_freq, in_channels), of which two are what the target was made with.
    """
    names = first_documented_shape(source_of(target), name)
    if len(names) != len("bztdc") or not letters_of(names).startswith("btt"):
        return None
    told = [_made_with(target, each) for each in names[3:]]
    sizes = tuple((letter, size) for letter, size in zip("dc", told, strict=True) if size)
    return Layout("bztdc", sizes) if len(sizes) == len(told) else None


def _made_with(target: Any, name: str) -> int:
    """The whole number that a module, or its config, holds by a name; 0 without."""
    for module in modules_in(target):
        config = getattr(module, "config", None)
        fields = config if isinstance(config, dict) else getattr(config, "__dict__", {})
        for value in (getattr(module, name, None), fields.get(name)):
            if type(value) is int and value > 0:
                return value
    return 0


def is_documented(layout: Layout, arguments: Sequence[Argument], source: str) -> bool:
    """Whether the documentation writes the axes of a sequence in the order of a layout."""
    letters = re.sub(r"[^bt123]", "d", layout.letters)
    return any(documented_letters(source, each.name) == letters for each in arguments if each.role in STREAMS)


def _grid_behind_which_samples_stand(source: str, arguments: list[Argument]) -> str:
    """The layout of rows, columns and then samples, where a line unpacks these from a sequence; empty elsewhere."""
    named = ([_BATCH.fullmatch(name) is not None for name in names] for names in _unpacked(source, arguments))
    return "yxbd" if [False, False, True, False] in named else ""


def _has_channels_last(source: str, arguments: list[Argument]) -> bool:
    """Whether a line unpacks samples, two axes and then channels from a sequence."""
    return any(
        _BATCH.fullmatch(names[0]) and _CHANNELS.fullmatch(names[-1]) and not _CHANNELS.fullmatch(names[1])
        for names in _unpacked(source, arguments)
    )


def are_of_sentences(source: str, name: str) -> bool:
    """Whether a line unpacks samples and two axes more from ids, as of the words of the sentences of documents."""
    return any(_BATCH_OF.match(names[0]) for names in axes_of(source, name, 3))


def _unpacked(source: str, arguments: list[Argument], axes: int = 4) -> Iterator[list[str]]:
    """The names of the axes of a sequence that has so many, as a line unpacks them."""
    for each in arguments:
        yield from axes_of(source, each.name, axes)


def _is_map(source: str) -> bool:
    """Whether the text names the sides of a map of features, or lays its places out by the square of one."""
    return _IMAGE.search(source) is not None or bool(squared(source))
