"""The facts of a text that was watched: what every head does, and what was looked at most; and their JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.files import plain, write_json

__all__ = ["LONG", "Head", "Layer", "Looked", "Most", "Overview", "Pair"]

LONG = 64
"""From so many tokens on a text is long: it is told what was looked at most, and a progress bar is shown."""


@dataclass(frozen=True)
class Pair:
    """A token that looks, one that it looks at, and the weight."""

    query: str
    query_index: int
    key: str
    key_index: int
    weight: float


@dataclass(frozen=True)
class Head:
    """What a head does with the text, on average over the tokens that look."""

    head: int
    kind: str
    scores: dict[str, float | None]
    """How much of each kind it has; None where no row could show it."""
    entropy: float
    """In nats."""
    distance: float | None
    """Position of the token that looks - position of what it looks at; above 0 looks back. None between two texts."""
    spread: float | None
    """Standard deviation of the attended position; likewise."""
    pair: Pair
    """The largest weight from one token of the text to another; in cross-attention to one of the source."""


@dataclass(frozen=True)
class Layer:
    """One attention of the model."""

    path: str
    kind: str
    """``self`` or ``cross``."""
    layer: int
    queries: int
    keys: int
    mask: str
    kernel: str
    error: float
    """weights @ v against the model's own output, relative: `AttentionMap.error`."""
    verified: bool
    heads: list[Head]


@dataclass(frozen=True)
class Looked:
    """A word, or a token around the text, and how much attention it received."""

    word: str
    index: list[int]
    """The tokens that it is one of, or several."""
    ordinary: bool
    """Whether it stands in the text, and was not put around it."""
    share: float
    """Of all attention, over all layers and heads."""
    layer: int
    """Where it received the largest share of a head."""
    head: int
    largest: float
    """That share."""


@dataclass(frozen=True)
class Most:
    """What one stack of layers looked at."""

    stack: str
    """The path of its layers."""
    kind: str
    """``self`` or ``cross``."""
    words: list[Looked]
    """The one that received most first."""


@dataclass(frozen=True)
class Overview:
    """What every head does with a text, and what was looked at most."""

    model: str
    text: str
    target: str | None
    """What an encoder-decoder writes for the text."""
    tokens: list[str]
    """Of the text."""
    target_tokens: list[str] | None
    """What the decoder of an encoder-decoder reads."""
    layers: list[Layer]
    most: list[Most]

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain lists and numbers; None where a number cannot be known."""
        return _known(plain(self))  # type: ignore[no-any-return]

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON; the file appears whole or not at all.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_dict(), path)


def _known(facts: Any) -> Any:
    """NaN as None, which JSON has."""
    if isinstance(facts, dict):
        return {name: _known(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [_known(value) for value in facts]
    return None if isinstance(facts, float) and math.isnan(facts) else facts
