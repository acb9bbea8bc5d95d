"""Text around token ids: stop strings, phrases, and what can be shown of a text that is still being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from regard.errors import InputError
from regard.generation.strategy import Phrase
from regard.pretrained import Pretrained

__all__ = ["StopStrings", "Writer", "phrase_ids"]

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


def phrase_ids(phrase: Phrase, name: str, pretrained: Pretrained | None, vocab_size: int) -> list[list[int]]:
    """The token ids of a phrase; of words that may not appear, as they are written at a beginning and after a space.

    Raises:
        InputError: words that the tokenizer makes nothing of; ids outside the vocabulary.
        TypeError: words for a model without a tokenizer.
    """
    if not isinstance(phrase, str):
        outside = [token for token in phrase if type(token) is not int or not 0 <= token < vocab_size]
        if outside:
            raise InputError(f"{name}={list(phrase)} has the id {outside[0]!r}; the vocabulary has 0 to {vocab_size - 1}")
        return [list(phrase)]
    if pretrained is None:
        raise TypeError(f"{name}={phrase!r}: words need a tokenizer, and a bare model has none; use regard.load")
    assert pretrained.tokenizer is not None
    ways = [pretrained.tokenizer.encode(way, add_special_tokens=False).ids for way in (f" {phrase}", phrase)]
    # What is fewer tokens is how the tokenizer itself would write it inside a text.
    ways = sorted((list(ids) for ids in ways if ids), key=len)
    if not ways:
        raise InputError(f"{name}={phrase!r}: the tokenizer makes no tokens of it")
    return ways[:1] if name == "must" else ways
