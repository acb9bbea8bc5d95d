"""Text from new token ids: `TextStreamer`, `StopStrings`, `BannedWords`, and the ids of phrases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from regard.decoding import Phrase
from regard.errors import InputError
from regard.pretrained import Pretrained

INCOMPLETE_BYTES = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes the first bytes of a character to."""


class StopStrings:
    """Strings that end a text."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)

    def find(self, text: str) -> int | None:
        """The index of the first stop string in a text."""
        indices = [index for string in self.strings if (index := text.find(string)) >= 0]
        return min(indices, default=None)

    def partial_length(self, text: str) -> int:
        """The number of characters at the end of a text that could be the beginning of a stop string."""
        return max(
            (
                size
                for string in self.strings
                for size in range(1, min(len(string) - 1, len(text)) + 1)
                if text.endswith(string[:size])
            ),
            default=0,
        )


class TextStreamer:
    """Text that grows token by token, in pieces that later tokens cannot change.

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
        text, num_streamed = "", 0
        for token in tokens:
            ids.append(token)
            text = self.decode(ids)
            end = self.stop.find(text)
            if end is not None:
                yield text[num_streamed:end]
                return
            complete = text.rstrip(INCOMPLETE_BYTES)
            end = len(complete) - self.stop.partial_length(complete)
            if end > num_streamed:
                yield text[num_streamed:end]
                num_streamed = end
        if text[num_streamed:]:
            yield text[num_streamed:]


class TextStream(Iterator[str]):
    """The pieces of a text during generation, and the tokens that were selected for them.

    Args:
        streamer: makes the pieces.
        tokens: the new tokens as they are selected.
    """

    def __init__(self, streamer: TextStreamer, tokens: Iterator[int]) -> None:
        self.ids: list[int] = []
        """The new tokens so far, with the stop token and those of a stop string."""
        self._pieces = streamer.pieces(self._recorded(tokens))

    def _recorded(self, tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            self.ids.append(token)
            yield token

    def __next__(self) -> str:
        return next(self._pieces)


class BannedWords:
    """Words that a text must not contain, whatever their tokens.

    A match has no letter or digit next to it: "bank" does not match in "bankrupt". A text that ends with "bank" is
    refused as well, because the next token may not continue the word.

    Args:
        words: none of them empty.
        decode: a row and its new tokens to text.
    """

    def __init__(self, words: Sequence[str], decode: Callable[[int, list[int]], str]) -> None:
        self.decode = decode
        patterns = [
            (r"(?<!\w)" if word[0].isalnum() else "") + re.escape(word) + (r"(?!\w)" if word[-1].isalnum() else "")
            for word in words
        ]
        self.pattern = re.compile("|".join(patterns)) if patterns else None

    def __bool__(self) -> bool:
        return self.pattern is not None

    def __call__(self, row: int, ids: list[int]) -> bool:
        """Whether the text of a row's new tokens contains a banned word."""
        return self.pattern is not None and self.pattern.search(self.decode(row, ids)) is not None


def phrase_ids(phrase: Phrase, name: str, pretrained: Pretrained | None, vocab_size: int) -> list[int]:
    """The token ids of a phrase; of words, as the tokenizer encodes them inside a text.

    Raises:
        InputError: words that have no tokens; ids outside the vocabulary.
        TypeError: words for a model without a tokenizer.
    """
    if not isinstance(phrase, str):
        invalid = [token for token in phrase if type(token) is not int or not 0 <= token < vocab_size]
        if invalid:
            raise InputError(
                f"{name}={list(phrase)} has the id {invalid[0]!r}; the vocabulary has 0 to {vocab_size - 1}"
            )
        return list(phrase)
    if pretrained is None:
        raise TypeError(f"{name}={phrase!r}: words need a tokenizer, and a bare model has none; use regard.load")
    # Inside a text a word begins with its space, unless the tokenizer puts one there itself.
    encodings = [pretrained.encode_continuation(text) for text in (f" {phrase}", phrase)]
    ids: list[int] = min((encoding for encoding in encodings if encoding), key=len, default=[])
    if not ids:
        raise InputError(f"{name}={phrase!r}: the tokenizer makes no tokens of it")
    return ids
