"""One attention of a recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from regard.lens.maps.head_types import HeadTypes, detect_heads
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.patches import NO_PATCHES, AttentionPatches
from regard.lens.maps.paths import stack_of
from regard.lens.maps.summary import AttentionSummary
from regard.lens.maps.tokens import Tokens, is_single_text, token_lists


@dataclass
class RecordingEntry:
    """One attention of a recording, and what is known of it before anything is computed."""

    path: str
    source: Callable[[], AttentionMap | AttentionSummary] | AttentionMap | AttentionSummary
    """The map, or a function that makes it."""
    shape: tuple[int, int, int, int]
    mask: str
    kernel: str
    kind: str
    """"self", "cross", or "" if it is not known."""
    layer: int | None
    heads: tuple[int, ...] | None
    """The heads of the model that the map has; None for all."""
    tokens: tuple[Tokens, Tokens | None] | None = None
    patches: AttentionPatches = NO_PATCHES

    def map(self) -> AttentionMap | AttentionSummary:
        """The map, made at the first call."""
        if not isinstance(self.source, AttentionMap | AttentionSummary):
            m = self.source()
            if self.tokens is not None:
                m.label(*self.tokens)
            self.source = m
        return self.source

    def head_types(self) -> HeadTypes:
        """The types of its heads."""
        m = self.map()
        return m.head_types() if isinstance(m, AttentionSummary) else detect_heads(m, cross=self.kind == "cross")

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the text that its queries are the last of."""
        return self.shape[2] if self.kind == "cross" else max(self.shape[2:])

    def without_padding(self, valid: Tensor) -> RecordingEntry:
        """The entry of the same attention without queries that are padding; see `AttentionMap.without_padding`."""

        def source() -> AttentionMap:
            m = self.map()
            if isinstance(m, AttentionSummary):
                raise ValueError(m.refusal("without_padding"))
            return m.without_padding(valid)

        return replace(self, source=source)

    def select(self, heads: Sequence[int]) -> RecordingEntry:
        """The entry with some heads of its map only.

        Args:
            heads: their indices in the map.
        """

        def source() -> AttentionMap:
            m = self.map()
            if isinstance(m, AttentionSummary):
                raise ValueError(m.refusal("select"))
            return m.select(heads=heads)

        batch, _, queries, keys = self.shape
        return replace(
            self,
            source=source,
            shape=(batch, len(heads), queries, keys),
            heads=tuple(self.head_numbers[head] for head in heads),
        )

    @property
    def head_numbers(self) -> Sequence[int]:
        """For each head of the map its number in the model."""
        return range(self.shape[1]) if self.heads is None else self.heads

    @property
    def stack(self) -> str:
        """The stack of layers that it belongs to: its path up to the first number, with the mark of a repeated call."""
        path, mark, times = self.path.partition("#")
        return stack_of(path) + mark + times

    def matches(self, name: str) -> bool:
        """Whether its kind is "self" or "cross", as the name says, or else its path has that part."""
        return self.kind == name if name in ("self", "cross") else f".{name}." in f".{self.path}."

    def label(self, tokens: tuple[Tokens, Tokens | None]) -> None:
        """Attach tokens that fit."""
        if isinstance(self.source, AttentionMap | AttentionSummary):
            self.source.label(*tokens)
        self.tokens = tokens

    def matching_tokens(
        self, queries: Tokens, keys: Tokens | None, *, reads_keys: bool
    ) -> tuple[Tokens, Tokens | None] | None:
        """Which of two texts are this attention's queries and keys; None if they do not fit."""
        options: list[tuple[Tokens, Tokens | None]] = []
        if self.kind != "cross":
            own = keys if reads_keys and keys is not None else queries
            # With fewer queries than keys, the queries are the last tokens.
            options = [(own, None), (_last(own, self.shape[2]), own)]
        if keys is not None:
            options += [(queries, keys), (keys, None)]
        return next((pair for pair in options if self._fit(*pair)), None)

    def _fit(self, queries: Tokens, keys: Tokens | None) -> bool:
        batch, _, num_queries, num_keys = self.shape
        if batch > 1 and is_single_text(queries):
            return False
        return all(
            [len(text) for text in token_lists(tokens)] == [count] * (1 if is_single_text(tokens) else batch)
            for tokens, count in ((queries, num_queries), (queries if keys is None else keys, num_keys))
        )

    def error_text(self) -> str:
        """The error of the map in a few words."""
        try:
            m = self.map()
            error = m.error
        except RuntimeError:
            return "changed since: cannot be read"
        if math.isnan(error):
            return "unknown, unverified"
        return f"{error:.1e}" if m.verified else f"{error:.1e} UNVERIFIED"


def _last(tokens: Tokens, count: int) -> Tokens:
    """The last tokens of each text."""
    if is_single_text(tokens):
        return tokens[max(0, len(tokens) - count) :]
    return [text[max(0, len(text) - count) :] for text in token_lists(tokens)]
