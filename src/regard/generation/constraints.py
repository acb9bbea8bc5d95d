"""Words that must, and words that may not, stand in a text that is written token by token."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Constraints"]


class Constraints:
    """Phrases as token ids, asked about while a text grows.

    Args:
        must: phrases that have to stand in the text.
        never: phrases that may not.
        stop: tokens that end a text; no phrase may hold one.
        limit: the most tokens that a text may have.

    Raises:
        ValueError: constraints that no text can meet; the message names them.
    """

    def __init__(
        self, must: Sequence[Sequence[int]], never: Sequence[Sequence[int]], stop: Sequence[int], limit: int
    ) -> None:
        self.must = [tuple(phrase) for phrase in must]
        self.never = [tuple(phrase) for phrase in never]
        self.limit = limit
        for phrase in self.must:
            for blocked in self.never:
                if _stands_in(blocked, phrase):
                    raise ValueError(f"must={list(phrase)} and never={list(blocked)} contradict each other")
            if any(token in stop for token in phrase):
                raise ValueError(f"must={list(phrase)} holds a stop token, one of {list(stop)}: it ends the text")
        if self.missing(()) > limit:
            raise ValueError(
                f"the words that must appear have {self.missing(())} tokens, and max_new_tokens={limit} is fewer"
            )

    def __bool__(self) -> bool:
        return bool(self.must or self.never)

    def blocked(self, text: Sequence[int]) -> list[int]:
        """The tokens that would end a phrase that may not stand in the text."""
        return [
            phrase[-1] for phrase in self.never if len(phrase) == 1 or tuple(text[1 - len(phrase) :]) == phrase[:-1]
        ]

    def missing(self, text: Sequence[int]) -> int:
        """How many tokens the text still needs at the most: those of unmet phrases, less those just begun."""
        unmet = self._unmet(text)
        return sum(map(len, unmet)) - max((_begun(phrase, text) for phrase in unmet), default=0)

    def wanted(self, text: Sequence[int]) -> list[int]:
        """The tokens that would go on with a phrase: the next of one that is begun, else the first of each."""
        unmet = self._unmet(text)
        begun = [(_begun(phrase, text), phrase) for phrase in unmet]
        furthest = max((n for n, _ in begun), default=0)
        return list(dict.fromkeys(phrase[n] for n, phrase in begun if n == furthest or not furthest))

    def _unmet(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        return [phrase for phrase in self.must if not _stands_in(phrase, tuple(text))]


def _stands_in(phrase: tuple[int, ...], text: Sequence[int]) -> bool:
    size = len(phrase)
    return any(tuple(text[i : i + size]) == phrase for i in range(len(text) - size + 1))


def _begun(phrase: tuple[int, ...], text: Sequence[int]) -> int:
    """How many of a phrase's first tokens the text ends with."""
    for size in range(min(len(phrase) - 1, len(text)), 0, -1):
        if tuple(text[-size:]) == phrase[:size]:
            return size
    return 0
