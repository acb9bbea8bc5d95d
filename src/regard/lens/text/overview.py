"""What every head of a model does with a text, which words received most attention, and the JSON of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.files import to_builtins, write_json

LONG_TEXT_TOKENS = 64
"""A text with at least this many tokens gets a list of its most attended words, and a progress bar."""


@dataclass(frozen=True)
class TokenPair:
    """A query token, a key token and the weight between them."""

    query: str
    query_index: int
    key: str
    key_index: int
    weight: float


@dataclass(frozen=True)
class HeadOverview:
    """One head; its numbers are means over the queries."""

    head: int
    head_type: str
    scores: dict[str, float | None]
    """For each head type a score from 0 to 1; None where no row of the text can show the type."""
    entropy: float
    """In nats."""
    distance: float | None
    """Query position - key position; above 0 the head attends to earlier tokens. None in cross-attention."""
    spread: float | None
    """Standard deviation of the key position. None in cross-attention."""
    pair: TokenPair
    """The largest weight between two different tokens of the text; in cross-attention between the two texts."""


@dataclass(frozen=True)
class LayerOverview:
    """One attention of the model."""

    path: str
    kind: str
    """``self`` or ``cross``."""
    layer: int
    num_queries: int
    num_keys: int
    mask: str
    kernel: str
    error: float
    """Relative difference between weights @ v and the model's own output: `AttentionMap.error`."""
    verified: bool
    heads: list[HeadOverview]


@dataclass(frozen=True)
class ReceivedWord:
    """The attention that a word or a special token received."""

    word: str
    token_index: list[int]
    """The positions of its tokens."""
    is_text: bool
    """False for a special token that the tokenizer added."""
    received_share: float
    """Its share of all attention, over all layers and heads."""
    layer: int
    """The layer and head in which it received its largest share."""
    head: int
    max_share: float
    """Its share in that head."""


@dataclass(frozen=True)
class MostAttended:
    """The words that one stack of layers attended to."""

    stack: str
    """The path of its layers."""
    kind: str
    """``self`` or ``cross``."""
    words: list[ReceivedWord]
    """Sorted by `ReceivedWord.received_share`, the largest first."""


@dataclass(frozen=True)
class AttendedKey:
    """A token that a word attends to."""

    token: str
    index: int
    weight: float


@dataclass(frozen=True)
class WordAttention:
    """What a word attends to in one head: that in which it gives one other token of the text the largest weight."""

    word: str
    token_index: list[int]
    """The positions of its tokens among the queries; the weights are means over them."""
    path: str
    kind: str
    """``self`` or ``cross``."""
    layer: int
    head: int
    positional_pattern: str | None
    """What nearly all tokens of the text do in this head; None if they differ."""
    keys: list[AttendedKey]
    """The tokens with the largest weights, the largest first."""
    rest: float
    """The sum of all other weights."""


@dataclass(frozen=True)
class Overview:
    """Every head of a model on one text, and the most attended words."""

    model: str
    text: str
    target: str | None
    """The output of an encoder-decoder for the text."""
    tokens: list[str]
    """The tokens of the text."""
    target_tokens: list[str] | None
    """What the decoder of an encoder-decoder reads."""
    layers: list[LayerOverview]
    most_attended: list[MostAttended]
    word: WordAttention | None = None
    """What one word attends to, if one was named."""

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain lists and numbers; NaN becomes None."""
        return _without_nan(to_builtins(self))  # type: ignore[no-any-return]

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON, by an atomic write.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_dict(), path)


def _without_nan(facts: Any) -> Any:
    """NaN, which JSON does not have, as None."""
    if isinstance(facts, dict):
        return {name: _without_nan(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [_without_nan(value) for value in facts]
    return None if isinstance(facts, float) and math.isnan(facts) else facts
