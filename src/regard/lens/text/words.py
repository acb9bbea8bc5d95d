"""The words of a text and the tokens that each word consists of."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace

from regard.errors import InputError, short_repr
from regard.pretrained import Pretrained

MAX_LISTED_WORDS = 40
"""The most words that an error message lists."""


@dataclass(frozen=True)
class Words:
    """A text, its tokens, and which tokens form which word. A position is the index of a token."""

    text: str
    tokens: list[str]
    ids: list[int]
    word_ids: list[int | None]
    """For each token the number of its word; None for a special token that the tokenizer added around the text."""
    token_type_ids: list[int]
    offsets: list[tuple[int, int]]
    """For each token its first character in the text, and the one after its last."""

    @classmethod
    def of(cls, text: str, pretrained: Pretrained, *, target: bool = False) -> Words:
        """Tokenize a text.

        Args:
            text: a text with at least one word.
            pretrained: a model and its tokenizer.
            target: whether the text is the output of an encoder-decoder; some have another tokenizer for that.

        Raises:
            InputError: the text is empty, too long or not valid, or it has no tokens.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text must be a string; got {type(text).__name__}")
        if not text.strip():
            raise InputError("the text is empty; write a sentence")
        encoding = pretrained.encode(text, target=target)
        words = cls(text, encoding.tokens, encoding.ids, encoding.word_ids, encoding.type_ids, encoding.offsets)
        if not words.word_positions():
            raise InputError(f"{short_repr(text)} has no tokens: the tokenizer drops control characters and spaces")
        return words

    def prepend(self, token: str, id_: int) -> Words:
        """The same words after a special token, such as the start token of a decoder."""
        return replace(
            self,
            tokens=[token, *self.tokens],
            ids=[id_, *self.ids],
            word_ids=[None, *self.word_ids],
            token_type_ids=[0, *self.token_type_ids],
            offsets=[(0, 0), *self.offsets],
        )

    def truncate(self, count: int) -> Words:
        """The first ``count`` tokens."""
        fields = ("tokens", "ids", "word_ids", "token_type_ids", "offsets")
        return replace(self, **{name: getattr(self, name)[:count] for name in fields})

    def display_tokens(self) -> list[str]:
        """The tokens in readable form.

        A token that the tokenizer spells in bytes, or with a sign for a space, becomes the characters of the text that
        it stands for. A piece of a word that begins with ## stays as it is.
        """
        tokens = []
        for position, (token, (start, end)) in enumerate(zip(self.tokens, self.offsets, strict=True)):
            characters = self.text[start:end]
            unchanged = not self.is_text(position) or not characters or token.startswith("##")
            tokens.append(token if unchanged or normalize_word(token) == normalize_word(characters) else characters)
        return tokens

    def surface_forms(self) -> list[str]:
        """For each token the characters of the text that it stands for; "" for a special token."""
        return [
            (self.surface_form([i]) or self.text[slice(*self.offsets[i])] or self.tokens[i]) if self.is_text(i) else ""
            for i in range(len(self.tokens))
        ]

    def surface_form(self, positions: list[int]) -> str:
        """The characters of the text that neighbouring tokens stand for; a special token is returned as it is."""
        if not self.is_text(positions[0]):
            return self.tokens[positions[0]]
        start, end = self.offsets[positions[0]][0], self.offsets[positions[-1]][1]
        while end < len(self.text) and unicodedata.category(self.text[end]).startswith("M"):
            end += 1  # a tokenizer that strips accents leaves the last accent outside the token
        return self.text[start:end].strip()

    def word_positions(self) -> list[list[int]]:
        """The positions of each word and punctuation mark, in order; tokens that are only space belong to none."""
        groups: list[list[int]] = []
        for position in filter(self.is_text, range(len(self.tokens))):
            if self._begins_word(position):
                groups.append([])
            groups[-1].append(position)
        return [positions for positions in groups if self.surface_form(positions)]

    def word_list(self) -> list[str]:
        """The words and punctuation marks in order, as they are written in the text."""
        return [self.surface_form(positions) for positions in self.word_positions()]

    def first_positions(self) -> dict[str, list[int]]:
        """The positions of the first occurrence of each word; the words are normalized as `find` does it."""
        first: dict[str, list[int]] = {}
        for positions in self.word_positions():
            first.setdefault(normalize_word(self.surface_form(positions)), positions)
        return first

    def describe(self) -> str:
        """The different words of the text for an error message; only the first words of a long text."""
        words = list(dict.fromkeys(word if len(word) <= 60 else f"{word[:60]}..." for word in self.word_list()))
        more = f" and {len(words) - MAX_LISTED_WORDS} more" if len(words) > MAX_LISTED_WORDS else ""
        return ", ".join(words[:MAX_LISTED_WORDS]) + more

    def is_text(self, position: int) -> bool:
        """Whether a token comes from the text; False for a special token that the tokenizer added."""
        return self.word_ids[position] is not None

    def find(self, word: str) -> list[list[int]]:
        """The positions of each occurrence of a word.

        Args:
            word: as it is written in the text, in any case; or a token of the tokenizer, such as ``[CLS]``.

        Raises:
            InputError: the text has no such word; the message lists its words.
        """
        if occurrences := self._occurrences(word):
            return occurrences
        raise InputError(
            f"the word {short_repr(word)} is not in the text {short_repr(self.text)}. Its words are: {self.describe()}"
        )

    def resolve(self, token: str | int) -> list[list[int]]:
        """As `find`, for a word or a position: a number, or digits that are no word of the text.

        Raises:
            InputError: no such word or position.
        """
        if not isinstance(token, str | int) or isinstance(token, bool):
            raise TypeError(f"token must be a word or a position; got {token!r}")
        if isinstance(token, str):
            if self.contains(token) or not token.isdecimal():
                return self.find(token)
            token = int(token.lstrip("0")[:9] or 0)  # no text has a position of more than nine digits
        if not 0 <= token < len(self.tokens):
            raise InputError(f"there is no token {token}: the text has tokens 0 to {len(self.tokens) - 1}")
        return [[token]]

    def contains(self, word: str) -> bool:
        """Whether a word occurs in the text."""
        return bool(self._occurrences(word))

    def _occurrences(self, word: str) -> list[list[int]]:
        normalized = normalize_word(word)
        by_word = [self._match_word(start, normalized) for start in range(len(self.tokens)) if normalized]
        return list(filter(None, by_word)) or [[i] for i, token in enumerate(self.tokens) if token == word]

    def _match_word(self, start: int, normalized: str) -> list[int]:
        """The positions from ``start`` on that form the word together; [] if no such word begins there."""
        begins = self._begins_word(start) and self.is_text(start)
        if not begins or (self._is_space(start) and self._begins_word(start + 1)):
            return []
        for last in range(start, len(self.tokens)):
            if not self.is_text(last):
                break
            candidate = normalize_word(self.surface_form([start, last]))
            if candidate == normalized and self._begins_word(last + 1):
                return list(range(start, last + 1))
            if len(candidate) > len(normalized):
                break
        return []

    def _begins_word(self, position: int) -> bool:
        """Whether a token is the first of its word. A special token and the end of the text begin a word as well.

        Not every tokenizer splits a text into words first: Llama 2 has one word for the whole text, T5 leaves a full
        stop in the word before it. So a space in the text begins a word too, and so does a mark after a letter.
        """
        if position in (0, len(self.tokens)):
            return True
        if self.word_ids[position] is None or self.word_ids[position] != self.word_ids[position - 1]:
            return True
        (_, before), (start, end) = self.offsets[position - 1], self.offsets[position]
        if start < before or self._is_space(position - 1):
            return False  # another byte of the same character; or the space before this token is its own token
        gap, previous = self.text[before:end][:1], self.text[:start][-1:]
        return gap.isspace() or _is_word_character(previous) != _is_word_character(self.text[start:end])

    def _is_space(self, position: int) -> bool:
        """Whether a token stands for nothing but space."""
        start, end = self.offsets[position]
        return self.is_text(position) and not self.text[start:end].strip()


def _is_word_character(text: str) -> bool:
    """Whether the first character is a letter, a digit, or a sign that joins or accents letters."""
    return text[:1].isalnum() or unicodedata.category(text[:1] or " ") in ("Mn", "Mc", "Me", "Cf")


def normalize_word(word: str) -> str:
    """A word for comparison: without case, with composed accents and single spaces."""
    return " ".join(unicodedata.normalize("NFC", word).casefold().split())
