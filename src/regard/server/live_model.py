"""`LiveModel`: what a model is to the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard._shapes import Float
from regard.errors import InputError
from regard.lens.recording.recording import Recording

EDITS = ("mask", "removedKeys", "temperature", "scale", "scores", "off")
"""The edits of a row that go through a model."""

OVER = ("heads", "layers", "tokens", "edges")
"""What effects are computed over."""

ABLATIONS = ("zero", "mean", "resample")

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes a part of a character to."""

LOGIT_METRICS = ("log_prob", "logit_difference", "kl")
"""The metrics of a model that predicts tokens."""


@dataclass(frozen=True)
class TextReading:
    """A text as the model read it."""

    recording: Recording
    """Labelled with the tokens, as they are shown."""
    logits: Float[Tensor, " vocab_size"] | None
    """After the last token; None for a model that predicts no next token."""
    vector: Float[Tensor, " d_model"] | None
    """Of the text; None where it is not known how the model makes one."""
    target: str | None = None
    """What an encoder-decoder writes for the text."""


@dataclass(frozen=True)
class WriterStep:
    """What a model knows before it writes a token."""

    logits: Float[Tensor, " vocab_size"]
    weights: list[float]
    """Of the shown head in the newest row, over all tokens so far."""


class TextWriter(ABC):
    """A model that continues one text, token by token."""

    stop_ids: frozenset[int]
    """The tokens after which it writes no more."""

    last_token: str
    """The last token of the prompt, as it is shown."""

    @abstractmethod
    def read_prompt(self) -> WriterStep:
        """Read the text.

        Raises:
            InputError: no such attention or head.
        """

    @abstractmethod
    def read_token(self, token: int) -> WriterStep:
        """Read one token more."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of new tokens."""


class LiveModel(ABC):
    """A model, its tokenizer, and what a page may ask of them. Only the computing thread calls `read` and the rest."""

    name: str
    kind: str
    description: str
    max_tokens: int
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    has_vector: bool = False
    generates: bool = False
    metrics: tuple[str, ...] = ()
    module: nn.Module

    def facts(self) -> dict[str, Any]:
        """`ModelFacts` in static/live/engine.js."""
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            "max_tokens": self.max_tokens,
            "texts": list(self.texts),
            "notes": list(self.notes),
            "has_vector": self.has_vector,
            "generates": self.generates,
            "effects": list(OVER if self.metrics else ()),
            "metrics": list(self.metrics),
            "ablations": list(ABLATIONS),
            "edits": list(EDITS),
        }

    @abstractmethod
    def read(self, text: str, target: str | None = None) -> TextReading:
        """Read a text under `regard.watch`.

        Args:
            text: what the model reads.
            target: the output of an encoder-decoder; by default the model writes it.

        Raises:
            InputError: a text that the model cannot read, or one of too many tokens.
        """

    @abstractmethod
    def context(self, texts: Sequence[str]) -> dict[str, Any] | None:
        """`Context` in static/core/data.js; None where the texts share no word, or states are not known."""

    @abstractmethod
    def token(self, id_: int) -> str:
        """A token of the vocabulary, as it is shown."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""

    def added_text(self, id_: int) -> str | None:
        """What a token adds to a text that it follows; None for a special token, or a part of a character."""
        # Some tokenizers leave the space out before a first word.
        first, both = self.decode([id_]), self.decode([id_, id_])
        added = both.removeprefix(first)
        return added if first and both.startswith(first) and REPLACEMENT not in both else None

    @abstractmethod
    def effect_arguments(self, text: str) -> tuple[Any, Any, Any]:
        """The model, the inputs and the tokenizer with which `regard.effect` reads a text."""

    @abstractmethod
    def pooling(self) -> str:
        """How the text's vector is made, for `regard.metrics.cosine`: "mean" or "first"."""

    @abstractmethod
    def text_vector(self, output: Any) -> Float[Tensor, " d_model"]:
        """The text's vector of the model's output; only of a model that has one."""

    @abstractmethod
    def writer(self, text: str, max_new_tokens: int, attention: int, head: int) -> TextWriter:
        """Begin to continue a text.

        Args:
            text: the prompt.
            max_new_tokens: the most tokens that are written.
            attention: the place of the shown attention, in the order of the recording.
            head: its place among the attention's.

        Raises:
            InputError: a model that writes no text; a text that is too long with these tokens; no such attention.
        """

    def require_tokens(self, count: int) -> None:
        """Refuse a text of too many tokens.

        Raises:
            InputError: it has more than `max_tokens`.
        """
        if count > self.max_tokens:
            raise InputError(
                f"the text has {count:,} tokens, and this page takes {self.max_tokens:,} at most: shorten it"
            )


def head_weights(recording: Recording, attention: int, head: int) -> list[float]:
    """The weights of a head in the last row.

    Raises:
        InputError: no such attention or head.
    """
    paths = list(recording)
    if attention >= len(paths):
        raise InputError(f"there is no attention {attention}: the model has {len(paths)}, from 0", "show.attention")
    m = recording[paths[attention]]
    if head >= m.shape[1]:
        raise InputError(f"there is no head {head}: this attention has {m.shape[1]}, from 0", "show.head")
    weights: list[float] = m[0, head, -1].tolist()
    return weights
