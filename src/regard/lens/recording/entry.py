"""One attention of a recording."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard.lens.maps.head_types import HeadTypes, detect_heads
from regard.lens.maps.map import AttentionMap, Tokens
from regard.lens.maps.summary import AttentionSummary

__all__ = ["RecordingEntry", "is_single_text", "lengths"]


@dataclass
class RecordingEntry:
    """One attention of a recording, and what is known of it before anything is computed."""

    path: str
    source: Callable[[], AttentionMap | AttentionSummary] | AttentionMap | AttentionSummary
    shape: tuple[int, int, int, int]
    mask: str
    kernel: str
    kind: str
    layer: int | None
    heads: tuple[int, ...] | None
    tokens: tuple[Tokens, Tokens | None] | None = None

    def map(self) -> AttentionMap | AttentionSummary:
        """The map, made when somebody asks for it the first time."""
        if not isinstance(self.source, AttentionMap | AttentionSummary):
            made = self.source()
            if self.tokens is not None:
                made.label(*self.tokens)
            self.source = made
        return self.source

    def head_types(self) -> HeadTypes:
        """The kinds of its heads."""
        made = self.map()
        return (
            made.head_types() if isinstance(made, AttentionSummary) else detect_heads(made, cross=self.kind == "cross")
        )

    @property
    def stack(self) -> str:
        """The stack of layers that it belongs to: its path up to the first number, and which forward pass it is of."""
        path, mark, times = self.path.partition("#")
        parts = path.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
        return ".".join(parts[: numbers[0]] if numbers else parts[:-1]) + mark + times

    def label(self, tokens: tuple[Tokens, Tokens | None]) -> None:
        """Attach tokens that fit."""
        if isinstance(self.source, AttentionMap | AttentionSummary):
            self.source.label(*tokens)
        self.tokens = tokens

    def tokens_of(
        self, queries: Tokens, keys: Tokens | None, *, reads_keys: bool
    ) -> tuple[Tokens, Tokens | None] | None:
        """Which of two texts are this attention's queries and keys; None where they do not fit."""
        options: list[tuple[Tokens, Tokens | None]] = []
        if self.kind != "cross":
            own = keys if reads_keys and keys is not None else queries
            # With fewer queries than keys, the queries are the last tokens.
            options = [(own, None), (_last(own, self.shape[2]), own)]
        if keys is not None:
            options += [(queries, keys), (keys, None)]
        return next((pair for pair in options if self._fit(*pair)), None)

    def _fit(self, queries: Tokens, keys: Tokens | None) -> bool:
        batch, _, rows, columns = self.shape
        sides = ((queries, rows), (queries if keys is None else keys, columns))
        return all(
            lengths(tokens) == [count] * (1 if is_single_text(tokens) else batch) for tokens, count in sides
        ) and (batch == 1 or not is_single_text(queries))

    def error_text(self) -> str:
        """How well the map proves itself, in a few words."""
        try:
            made = self.map()
            error = made.error
        except RuntimeError:
            return "changed since: cannot be read"
        if math.isnan(error):
            return "unknown, unverified"
        return f"{error:.1e}" if made.verified else f"{error:.1e} UNVERIFIED"


def is_single_text(tokens: Tokens) -> bool:
    """Whether these are the tokens of one text."""
    return not tokens or isinstance(tokens[0], str)


def lengths(tokens: Tokens) -> list[int]:
    """How many tokens each text has."""
    return [len(tokens)] if is_single_text(tokens) else [len(text) for text in tokens]


def _last(tokens: Tokens, count: int) -> Tokens:
    """The last tokens of each text."""
    if is_single_text(tokens):
        return tokens[max(0, len(tokens) - count) :]
    return [text[max(0, len(text) - count) :] for text in tokens]  # type: ignore[return-value]
