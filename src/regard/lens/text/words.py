"""Finding a word among the tokens of a text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace

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
    def of(cls, text: str, pretrained: Pretrained, *, target: bool = False) -> Words:
        """The words of a text.

        Args:
            text: with at least one word.
            pretrained: a model and its tokenizer.
            target: whether it is what an encoder-decoder writes; some have another tokenizer for that.

        Raises:
            InputError: the text is empty, too long, not valid, or nothing is left of it as tokens.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text must be a string; got {type(text).__name__}")
        if not text.strip():
            raise InputError("the text is empty; write a sentence")
        encoding = pretrained.encode(text, target=target)
        words = cls(text, encoding.tokens, encoding.ids, encoding.word_ids, encoding.type_ids, encoding.offsets)
        if not words.groups():
            raise InputError(
                f"nothing is left of {quoted(text)} as tokens: the tokenizer drops control characters and spaces"
            )
        return words

    def after(self, token: str, id_: int) -> Words:
        """The same words behind a token that is not in the text: what a decoder reads first."""
        return replace(
            self,
            tokens=[token, *self.tokens],
            ids=[id_, *self.ids],
            word_of=[None, *self.word_of],
            segments=[0, *self.segments],
            spans=[(0, 0), *self.spans],
        )

    def first(self, count: int) -> Words:
        """The same words without the tokens behind the first ``count``."""
        fields = ("tokens", "ids", "word_of", "segments", "spans")
        return replace(self, **{name: getattr(self, name)[:count] for name in fields})

    def shown(self) -> list[str]:
        """Each token as somebody who reads the text knows it.

        What stands there, where the tokenizer spells it in bytes or marks its spaces; a piece of a word that it writes
        with ## stays that.
        """
        tokens = []
        for place, (token, (start, end)) in enumerate(zip(self.tokens, self.spans, strict=True)):
            stands = self.text[start:end]
            as_itself = not self.ordinary(place) or not stands or token.startswith("##")
            tokens.append(token if as_itself or _plain(token) == _plain(stands) else stands)
        return tokens

    def groups(self) -> list[list[int]]:
        """The tokens of each word and mark of the text, in order; tokens that are only space belong to none."""
        groups: list[list[int]] = []
        for token in filter(self.ordinary, range(len(self.tokens))):
            if self._begins(token):
                groups.append([])
            groups[-1].append(token)
        return [tokens for tokens in groups if self.written(tokens)]

    def all(self) -> list[str]:
        """The words and marks of the text in order, as they are written there."""
        return [self.written(tokens) for tokens in self.groups()]

    def places(self) -> dict[str, list[int]]:
        """The tokens of the first place of each word, by the word as `find` compares it: without its case."""
        found: dict[str, list[int]] = {}
        for tokens in self.groups():
            found.setdefault(_plain(self.written(tokens)), tokens)
        return found

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
        if not self._begins(first) or not self.ordinary(first) or (self._blank(first) and self._begins(first + 1)):
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
        """Whether a token is the first of its word; what is put around the text, and its end, begin something new.

        Not every tokenizer cuts a text into words first: to Llama 2's all of it is one, T5's leaves a full stop in the
        word before. So a space in the text begins a word too, and so does a mark after a letter.
        """
        if token in (0, len(self.tokens)):
            return True
        if self.word_of[token] is None or self.word_of[token] != self.word_of[token - 1]:
            return True
        (_, before), (start, end) = self.spans[token - 1], self.spans[token]
        if start < before or self._blank(token - 1):
            return False  # one more byte of a character; or the space before this token was a token of its own
        return self.text[before:end][:1].isspace() or _is_word(self.text[:start][-1:]) != _is_word(self.text[start:end])

    def _blank(self, token: int) -> bool:
        """Whether nothing but space stands in the text where a token stands."""
        start, end = self.spans[token]
        return self.ordinary(token) and not self.text[start:end].strip()


def _is_word(text: str) -> bool:
    """Whether a text begins with what words are made of: letters, digits, and the signs that join or accent them."""
    return text[:1].isalnum() or unicodedata.category(text[:1] or " ") in ("Mn", "Mc", "Me", "Cf")


def _plain(word: str) -> str:
    """A word without what does not tell words apart here: case, the way an accent is encoded, how much space."""
    return " ".join(unicodedata.normalize("NFC", word).casefold().split())
