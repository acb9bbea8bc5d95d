"""What static/model/tokenizer.js needs to know of a BERT tokenizer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from tokenizers import Tokenizer
from tokenizers.normalizers import NFD, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from regard.errors import InputError
from regard.pretrained import Pretrained

NORMALIZER_OPTIONS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")

SEPARATOR = "\ua000"
"""A letter that no normalizer changes, and that no other character becomes (YI SYLLABLE IT)."""

FIRST_MARK, LAST_MARK = "\u0334", "\u0345"
"""The marks of the lowest and of the highest combining class of Unicode: 1 and 240."""

BLOCK = 2**13
"""The characters that are asked of the library at once: a larger block takes longer, for its memory."""


def wordpiece_settings(pretrained: Pretrained) -> dict[str, Any]:
    """The settings of the tokenizer in the page: ``WordPieceSettings`` of static/model/tokenizer.js, as plain data.

    The page reads a text as `Pretrained.encode` does. It can do so for the tokenizers of BERT and of MiniLM: WordPiece
    after BertNormalizer and BertPreTokenizer, with special tokens around the text.

    Raises:
        InputError: no tokenizer, or one of another kind; the message names what the page does not support.

    Example:
        ``wordpiece_settings(regard.load())["max_tokens"]`` is 512.
    """
    if not isinstance(pretrained.tokenizer, Tokenizer):
        raise InputError(f"{pretrained.name} has no tokenizer.json, and a page reads texts with nothing else")
    reader = _Reader(pretrained.name, json.loads(pretrained.tokenizer.to_str()))
    return {
        **reader.model(),
        "special_tokens": reader.special_tokens(),
        "template": reader.template(),
        "max_tokens": pretrained.config.max_positions,
        "normalizer": reader.normalizer(),
        "characters": character_classes(),
    }


class _Reader:
    """Reads a tokenizer.json, and refuses by name what the page would compute otherwise."""

    def __init__(self, name: str, tokenizer: dict[str, Any]) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.require("pre_tokenizer", "BertPreTokenizer")
        self.ids: dict[str, int] = {}

    def require(self, part: str, type_: str) -> dict[str, Any]:
        """A part of the tokenizer, which must be of a type."""
        found: dict[str, Any] = self.tokenizer[part] or {}
        if found.get("type") != type_:
            raise self.unsupported(f"the {part} {found.get('type')}, and a page knows {type_} only")
        return found

    def unsupported(self, what: str) -> InputError:
        """The error that names what the page cannot compute."""
        return InputError(
            f"the tokenizer of {self.name} has {what}: take a model with BERT's tokenizer, or regard live, which runs "
            "the tokenizer itself"
        )

    def model(self) -> dict[str, Any]:
        """The vocabulary, and how words are split."""
        model = self.require("model", "WordPiece")
        self.ids = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
        if list(self.ids.values()) != list(range(len(self.ids))):
            raise self.unsupported("ids that do not follow one another")
        if wrong := [token for token in self.ids if "\n" in token]:
            raise self.unsupported(f"the token {wrong[0]!r} with a line end")
        if model["unk_token"] not in self.ids:
            raise self.unsupported(f"no token {model['unk_token']!r} for words that it cannot spell")
        return {
            "vocab": "\n".join(self.ids),
            "unk_token": model["unk_token"],
            "prefix": model["continuing_subword_prefix"],
            "max_word_length": model["max_input_chars_per_word"],
        }

    def special_tokens(self) -> list[tuple[str, int]]:
        """The tokens that are found in a text before anything else."""
        for token in self.tokenizer["added_tokens"]:
            for flag in ("single_word", "lstrip", "rstrip", "normalized"):
                if token[flag]:
                    raise self.unsupported(f"the added token {token['content']!r} with {flag}")
        return [(token["content"], token["id"]) for token in self.tokenizer["added_tokens"]]

    def template(self) -> dict[str, list[int]]:
        """The ids before and after a text."""
        processor = self.tokenizer["post_processor"]
        if processor is None:
            return {"before": [], "after": []}
        if processor["type"] == "BertProcessing":
            return {"before": [processor["cls"][1]], "after": [processor["sep"][1]]}
        single = self.require("post_processor", "TemplateProcessing")["single"]
        if any(piece["type_id"] for each in single for piece in each.values()):
            raise self.unsupported("token types other than 0 in the template of one text")
        ids: list[list[int]] = [[], []]
        side = 0
        for piece in single:
            if "Sequence" in piece:
                side += 1
            else:
                ids[min(side, 1)] += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
        if side != 1:
            raise self.unsupported(f"a template that has the text {side} times")
        return {"before": ids[0], "after": ids[1]}

    def normalizer(self) -> dict[str, bool]:
        """Which steps the normalizer takes."""
        normalizer = self.require("normalizer", "BertNormalizer")
        options = {name: normalizer[name] for name in NORMALIZER_OPTIONS}
        if options["strip_accents"] is None:
            options["strip_accents"] = options["lowercase"]
        return options


@cache
def character_classes() -> dict[str, list[int]]:
    """For each class of static/model/characters.js its ranges of code points: the first and the last, in one list.

    The library is asked about every character of Unicode: its tables are of several versions, and what a browser or
    Python calls punctuation or a mark is of others.
    """
    codes: dict[str, list[int]] = defaultdict(list)
    for start in range(0, 0x110000, BLOCK):
        block = [c for c in range(start, start + BLOCK) if not 0xD800 <= c < 0xE000 and c != ord(SEPARATOR)]
        for name, characters in _classes_of("".join(map(chr, block))).items():
            codes[name] += map(ord, characters)
    return {name: _ranges(numbers) for name, numbers in codes.items()}


def _classes_of(block: str) -> dict[str, list[str]]:
    """For each class the characters of a block that belong to it."""
    decomposed = _normalized(NFD().normalize_str, block)
    marked = _normalized(NFD().normalize_str, block, LAST_MARK, FIRST_MARK)
    cleaned, spaced, stripped = (
        _normalized(BertNormalizer(**{name: name == option for name in NORMALIZER_OPTIONS}).normalize_str, block)
        for option in ("clean_text", "handle_chinese_chars", "strip_accents")
    )
    whitespace, punctuation = _split_at(block)
    return {
        "removed": [c for c, each in zip(block, cleaned, strict=True) if not each],
        "whitespace": whitespace,
        "chinese": [c for c, each in zip(block, spaced, strict=True) if len(each) > 1],
        "decomposed": [c for c, each in zip(block, decomposed, strict=True) if each != c],
        # Between two marks in the wrong order: a character that is no mark keeps them apart.
        "reordered": [c for c, each in zip(block, marked, strict=True) if each[0] != LAST_MARK],
        "mark": [c for c, each in zip(block, stripped, strict=True) if not each],
        "punctuation": punctuation,
    }


def _normalized(normalize: Callable[[str], str], characters: str, before: str = "", after: str = "") -> list[str]:
    """What each character becomes, between ``before`` and ``after``."""
    text = f"{after}{SEPARATOR}{before}".join(characters)
    parts = normalize(before + text + after).split(SEPARATOR)
    assert len(parts) == len(characters)
    return parts


def _split_at(characters: str) -> tuple[list[str], list[str]]:
    """The characters that BertPreTokenizer takes for whitespace, and for punctuation."""
    pieces = BertPreTokenizer().pre_tokenize_str(SEPARATOR + SEPARATOR.join(characters) + SEPARATOR)
    # Every second character is the separator. A space is missing between two pieces; a punctuation mark is a piece.
    punctuation = [piece for piece, (start, _) in pieces if start % 2 and len(piece) == 1]
    whitespace = [characters[end // 2] for (_, (_, end)), (_, (start, _)) in pairwise(pieces) if start > end]
    return whitespace, punctuation


def _ranges(codes: Iterable[int]) -> list[int]:
    """The first and the last of each run of numbers that follow one another."""
    runs = groupby(enumerate(codes), key=lambda item: item[1] - item[0])
    bounds: list[int] = []
    for _, run in runs:
        numbers = [code for _, code in run]
        bounds += [numbers[0], numbers[-1]]
    return bounds
