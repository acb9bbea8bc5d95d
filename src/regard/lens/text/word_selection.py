"""The word that is explained or shown first: the one that is named, by default the last one that all texts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError, errors_of_argument
from regard.lens.text.explanation import ExplainedWord
from regard.lens.text.streams import Streams
from regard.lens.text.words import Words


@dataclass(frozen=True, eq=False)
class TextWord:
    """A word of a text, and the most informative of its heads."""

    word: ExplainedWord
    streams: Streams
    """The word is one of their queries."""
    path: str
    head: int
    """The index of the head in the map."""
    pattern: str | None
    """What nearly all tokens do in this head, whatever they mean; None if they differ."""
    weights: Float[Tensor, " keys"]
    """Of this head, the mean over the word's tokens."""

    @property
    def query(self) -> int:
        """The first token of the word that is more than a space."""
        words, positions = self.streams.query_words, self.word.token_index
        return next((position for position in positions if words.surface_form([position])), positions[0])


def select_word(token: str | int | None, streams: Streams, others: Sequence[Words] = ()) -> ExplainedWord:
    """A word among the queries.

    Args:
        token: the word, at its first occurrence, or the position of a token. By default the last word that all texts
            share.
        streams: of an attention that has the word as a query.
        others: other texts that have the word, too.

    Raises:
        InputError: no such word or position; the texts share no word.
    """
    words = streams.query_words
    if token is None:
        with errors_of_argument("compare"):
            token = _last_shared_word([words, *others])
    with errors_of_argument("token"):
        occurrences = _find_occurrences(token, streams)
        word = ExplainedWord(words.surface_form(occurrences[0]), occurrences[0], occurrences)
        for other in others:
            other.find(word.text)
    return word


def _last_shared_word(texts: Sequence[Words]) -> str:
    """The last word of the first text that all texts have; a mark such as "." only if they share nothing else."""
    first, *others = texts
    shared = [word for word in first.word_list() if all(other.contains(word) for other in others)]
    if not shared:
        raise InputError(f"the texts share no word; the first one's are: {first.describe()}")
    return ([word for word in shared if any(c.isalnum() for c in word)] or shared)[-1]


def _find_occurrences(token: str | int, streams: Streams) -> list[list[int]]:
    """The occurrences of the word among the queries."""
    try:
        return streams.query_words.resolve(token)
    except InputError as error:
        if streams.source is not None and isinstance(token, str) and streams.source.contains(token):
            raise InputError(
                f"{error}. It is a word of the source; the word explained is one of the target. For the source's own "
                "choose the attention encoder"
            ) from None
        raise
