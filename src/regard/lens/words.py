"""Finding a word among the tokens of a text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from tokenizers import Encoding

from regard.errors import InputError, quoted
from regard.pretrained import Pretrained

__all__ = ["Words"]

LISTED = 40
"""How many of a text's words a message lists."""


@dataclass(frozen=True)
class Words:
    """A text as its tokens, and which of them make a word."""

    text: str
    tokens: list[str]
    ids: list[int]
    word_of: list[int | None]
    """For each token the number of its word in the text; None for what the tokenizer put around the text."""
    segments: list[int]
    spans: list[tuple[int, int]]
    """For each token where it stands in the text."""

    @classmethod
    def of(cls, text: str, pretrained: Pretrained) -> Words:
        """The words of a text.

        Raises:
            InputError: the text is empty, too long, not valid, or nothing is left of it as tokens.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text must be a string; got {type(text).__name__}")
        if not text.strip():
            raise InputError("the text is empty; write a sentence")
        encoding: Encoding = pretrained.encode(text)
        if all(word is None for word in encoding.word_ids):
            raise InputError(
                f"nothing is left of {quoted(text)} as tokens: the tokenizer drops control characters and spaces"
            )
        return cls(text, encoding.tokens, encoding.ids, encoding.word_ids, encoding.type_ids, encoding.offsets)

    def all(self) -> list[str]:
        """The words and marks of the text in order, as they are written there."""
        pieces: dict[int, list[int]] = {}
        for token, number in enumerate(self.word_of):
            if number is not None:
                pieces.setdefault(number, []).append(token)
        return [self.written(tokens) for tokens in pieces.values()]

    def listed(self) -> str:
        """The text's words, each once, for a message: the first of them, where there are many."""
        words = list(dict.fromkeys(word if len(word) <= 60 else f"{word[:60]}..." for word in self.all()))
        return ", ".join(words[:LISTED]) + (f" and {len(words) - LISTED} more" if len(words) > LISTED else "")

    def written(self, pieces: list[int]) -> str:
        """What stands in the text where these tokens stand; a token around the text is given as itself."""
        if not self.ordinary(pieces[0]):
            return self.tokens[pieces[0]]
        start, end = self.spans[pieces[0]][0], self.spans[pieces[-1]][1]
        while end < len(self.text) and unicodedata.category(self.text[end]).startswith("M"):
            end += 1  # a tokenizer that strips accents leaves the last one's mark outside the token
        return self.text[start:end].strip()

    def ordinary(self, token: int) -> bool:
        """Whether a token comes from the text, and was not put around it by the tokenizer."""
        return self.word_of[token] is not None

    def find(self, word: str) -> list[list[int]]:
        """The tokens of each place where a word stands in the text.

        Args:
            word: as written in the text, whatever its case; or a token as the tokenizer writes it, ``[CLS]``.

        Raises:
            InputError: no such word; the message lists those there are.
        """
        if places := self._places(word):
            return places
        raise InputError(
            f"the word {quoted(word)} is not in the text {quoted(self.text)}. Its words are: {self.listed()}"
        )

    def choose(self, token: str | int) -> list[list[int]]:
        """`find` for what a user names: also the position of one token, as a number or as digits that are no word.

        Raises:
            InputError: no such word or position.
        """
        if not isinstance(token, str | int) or isinstance(token, bool):
            raise TypeError(f"token must be a word or a position; got {token!r}")
        if isinstance(token, str):
            if self.has(token) or not token.isdecimal():
                return self.find(token)
            token = int(token.lstrip("0")[:9] or 0)  # nine digits are more than any text has tokens
        if not 0 <= token < len(self.tokens):
            raise InputError(f"there is no token {token}: the text has tokens 0 to {len(self.tokens) - 1}")
        return [[token]]

    def has(self, word: str) -> bool:
        """Whether a word stands in the text."""
        return bool(self._places(word))

    def _places(self, word: str) -> list[list[int]]:
        wanted = _plain(word)
        places = [place for first in range(len(self.tokens)) if wanted and (place := self._place(first, wanted))]
        return places or [[i] for i, token in enumerate(self.tokens) if token == word]

    def _place(self, first: int, wanted: str) -> list[int]:
        """The tokens from ``first`` on that are together the wanted word, if a word begins and ends there."""
        if not self._begins(first) or not self.ordinary(first):
            return []
        for last in range(first, len(self.tokens)):
            if not self.ordinary(last):
                break
            here = _plain(self.written([first, last]))
            if here == wanted and self._begins(last + 1):
                return list(range(first, last + 1))
            if len(here) > len(wanted):
                break
        return []

    def _begins(self, token: int) -> bool:
        """Whether a token is the first of its word; what is put around the text, and its end, begin something new."""
        if token in (0, len(self.tokens)):
            return True
        return self.word_of[token] is None or self.word_of[token] != self.word_of[token - 1]


def _plain(word: str) -> str:
    """A word without what does not tell words apart here: case, the way an accent is encoded, how much space."""
    return " ".join(unicodedata.normalize("NFC", word).casefold().split())
