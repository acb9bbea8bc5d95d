"""Text around token ids: stop strings, phrases, and what can be shown of a text that is still being written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from regard.errors import InputError
from regard.generation.strategy import Phrase
from regard.pretrained import Pretrained

__all__ = ["StopStrings", "Unwanted", "Writer", "phrase_ids"]

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that do not make a letter yet."""


class StopStrings:
    """Strings that end a text."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)

    def first(self, text: str) -> int | None:
        """Where the first of them begins in a text."""
        places = [place for string in self.strings if (place := text.find(string)) >= 0]
        return min(places, default=None)

    def could_begin(self, text: str) -> int:
        """How many letters at the end of a text could be the beginning of one of them."""
        return max(
            (
                size
                for string in self.strings
                for size in range(1, min(len(string) - 1, len(text)) + 1)
                if text.endswith(string[:size])
            ),
            default=0,
        )


class Writer:
    """A text that grows token by token, in pieces that will not change any more.

    Args:
        decode: token ids to text.
        stop: strings that the text ends before.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: StopStrings) -> None:
        self.decode = decode
        self.stop = stop

    def pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """The text of tokens as they come."""
        ids: list[int] = []
        text, shown = "", 0
        for token in tokens:
            ids.append(token)
            text = self.decode(ids)
            end = self.stop.first(text)
            if end is not None:
                yield text[shown:end]
                return
            certain = text.rstrip(UNFINISHED)
            sure = len(certain) - self.stop.could_begin(certain)
            if sure > shown:
                yield text[shown:sure]
                shown = sure
        if text[shown:]:
            yield text[shown:]


class Unwanted:
    """Words that may not stand in a text, whichever tokens they are made of.

    A word is one with no letter or digit beside it: "bank" does not stand in "bankrupt". A text that ends with the
    word so far is refused too, for the next token may not go on with it.

    Args:
        words: none of them empty.
        decode: a row and its new tokens to text.
    """

    def __init__(self, words: Sequence[str], decode: Callable[[int, list[int]], str]) -> None:
        self.decode = decode
        each = [
            (r"(?<!\w)" if word[0].isalnum() else "") + re.escape(word) + (r"(?!\w)" if word[-1].isalnum() else "")
            for word in words
        ]
        self.pattern = re.compile("|".join(each)) if each else None

    def __bool__(self) -> bool:
        return self.pattern is not None

    def __call__(self, row: int, ids: list[int]) -> bool:
        """Whether one of them stands in the text of a row's new tokens."""
        return self.pattern is not None and self.pattern.search(self.decode(row, ids)) is not None


def phrase_ids(phrase: Phrase, name: str, pretrained: Pretrained | None, vocab_size: int) -> list[int]:
    """The token ids of a phrase; of words, as the tokenizer writes them inside a text.

    Raises:
        InputError: words that the tokenizer makes nothing of; ids outside the vocabulary.
        TypeError: words for a model without a tokenizer.
    """
    if not isinstance(phrase, str):
        outside = [token for token in phrase if type(token) is not int or not 0 <= token < vocab_size]
        if outside:
            raise InputError(
                f"{name}={list(phrase)} has the id {outside[0]!r}; the vocabulary has 0 to {vocab_size - 1}"
            )
        return list(phrase)
    if pretrained is None:
        raise TypeError(f"{name}={phrase!r}: words need a tokenizer, and a bare model has none; use regard.load")
    # Inside a text a word begins with its space, where the tokenizer does not put one there itself.
    ways = [pretrained.pieces(way) for way in (f" {phrase}", phrase)]
    ids: list[int] = min((way for way in ways if way), key=len, default=[])
    if not ids:
        raise InputError(f"{name}={phrase!r}: the tokenizer makes no tokens of it")
    return ids
