"""`Constraints`: phrases that a text must, and must not, contain, while it is generated token by token."""

from __future__ import annotations

from collections.abc import Sequence


class Constraints:
    """Phrases as token ids.

    Args:
        force_words: phrases that the text must contain.
        bad_words: phrases that it must not contain.
        stop: tokens that end a text; no forced phrase may contain one.
        max_new_tokens: the most tokens that a text may have.

    Raises:
        ValueError: constraints that no text can meet; the message names them.
    """

    def __init__(
        self,
        force_words: Sequence[Sequence[int]],
        bad_words: Sequence[Sequence[int]],
        stop: Sequence[int],
        max_new_tokens: int,
    ) -> None:
        self.force_words = [tuple(phrase) for phrase in force_words]
        self.bad_words = [tuple(phrase) for phrase in bad_words]
        for phrase in self.force_words:
            for banned in self.bad_words:
                if _contains(phrase, banned):
                    raise ValueError(f"force_words={list(phrase)} and bad_words={list(banned)} contradict each other")
            if any(token in stop for token in phrase):
                raise ValueError(
                    f"force_words={list(phrase)} holds a stop token, one of {list(stop)}: it ends the text"
                )
        if self.num_missing(()) > max_new_tokens:
            raise ValueError(
                f"the words that must appear have {self.num_missing(())} tokens, and max_new_tokens={max_new_tokens} "
                "is fewer"
            )

    def __bool__(self) -> bool:
        return bool(self.force_words or self.bad_words)

    def banned_tokens(self, text: Sequence[int]) -> list[int]:
        """The tokens that would complete a banned phrase."""
        return [
            phrase[-1] for phrase in self.bad_words if len(phrase) == 1 or tuple(text[1 - len(phrase) :]) == phrase[:-1]
        ]

    def num_missing(self, text: Sequence[int]) -> int:
        """The most tokens that the text still needs: those of the unmet phrases, less the longest begun prefix."""
        unmet = self._unmet(text)
        return sum(map(len, unmet)) - max((_prefix_length(phrase, text) for phrase in unmet), default=0)

    def forced_tokens(self, text: Sequence[int]) -> list[int]:
        """The tokens that would continue an unmet phrase: of the one furthest begun, else of each."""
        lengths = [(_prefix_length(phrase, text), phrase) for phrase in self._unmet(text)]
        furthest = max((length for length, _ in lengths), default=0)
        return list(dict.fromkeys(phrase[n] for n, phrase in lengths if n == furthest or not furthest))

    def _unmet(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        return [phrase for phrase in self.force_words if not _contains(tuple(text), phrase)]


def _contains(text: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    return any(text[i : i + len(phrase)] == phrase for i in range(len(text) - len(phrase) + 1))


def _prefix_length(phrase: tuple[int, ...], text: Sequence[int]) -> int:
    """The number of tokens at the end of the text that are the beginning of the phrase."""
    for size in range(min(len(phrase) - 1, len(text)), 0, -1):
        if tuple(text[-size:]) == phrase[:size]:
            return size
    return 0
