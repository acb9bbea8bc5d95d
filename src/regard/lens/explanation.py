"""The facts of an explained word, and their JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError

__all__ = ["Comparison", "Explanation", "Partner", "Proof"]


@dataclass(frozen=True)
class Partner:
    """Another token, and where the explained word gives it the largest share."""

    token: str
    index: int
    weight: float
    layer: int
    head: int


@dataclass(frozen=True)
class Proof:
    """The row of the definition held against the model's own."""

    largest_difference: float
    """Largest absolute difference between weights @ v by `regard.steps` in float64 and the attention output that the
    model computed in its forward pass."""
    largest_output: float
    """Largest absolute value of that output, to judge the difference by."""
    numbers: int
    """How many numbers were compared."""
    model_output: list[list[float]]
    """The model's own output of the row: one list per token of the word."""


@dataclass(frozen=True)
class Comparison:
    """The word in another sentence."""

    text: str
    token_index: list[int]
    cosine: list[float]
    """Cosine between the word's vectors in the two sentences, at the input and after each layer."""


@dataclass(frozen=True)
class Explanation:
    """What attention does with one word of a text, in one head of one layer.

    Rows belong to the tokens of the word, in order: one row for a word of one token.
    """

    model: str
    text: str
    tokens: list[str]
    ids: list[int]
    written: list[str]
    """What stands in the text where each token stands; empty for what the tokenizer put around the text."""
    token: str
    """The explained word as it stands in the text."""
    token_index: list[int]
    """Where its tokens stand."""
    occurrences: list[list[int]]
    """Every place where the word stands; the first is explained."""
    layer: int
    head: int
    input_shape: tuple[int, int]
    """(tokens, d_model): what goes into the first layer."""
    input_parts: dict[str, Float[Tensor, "pieces d_model"]]
    """The vectors that are added for the word: token, position, segment; their sum; and the sum after the norm."""
    scale: float
    """What the scores are multiplied by: 1 / sqrt(d_key)."""
    q: Float[Tensor, "pieces d_key"]
    k: Float[Tensor, "tokens d_key"]
    v: Float[Tensor, "tokens d_value"]
    scores: Float[Tensor, "pieces tokens"]
    scaled: Float[Tensor, "pieces tokens"]
    weights: Float[Tensor, "pieces tokens"]
    output: Float[Tensor, "pieces d_value"]
    partners: list[Partner]
    """The text's other tokens, the one that gets the largest share in any head first."""
    habit: str | None
    """What nearly all tokens of this text do in this head, if they do the same."""
    proof: Proof
    compare: list[Comparison]

    def __str__(self) -> str:
        share, best = self.weights.mean(dim=0).max(dim=0)
        return (
            f"{self.token!r} gives {self.tokens[int(best)]!r} {share:.4f} in layer {self.layer} head {self.head} of "
            f"{self.model}; the definition in float64 differs from the model by at most "
            f"{self.proof.largest_difference:.1e}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain lists and numbers.

        For a word of one token, ``token_index`` is a number and ``q``, ``scores``, ``scaled``, ``weights`` and
        ``output`` are flat lists; for a word of several they are lists with one entry per token.
        """
        rows = {name: getattr(self, name).tolist() for name in ("q", "scores", "scaled", "weights", "output")}
        single = len(self.token_index) == 1
        return {
            "model": self.model,
            "text": self.text,
            "tokens": self.tokens,
            "ids": self.ids,
            "written": self.written,
            "token": self.token,
            "token_index": self.token_index[0] if single else self.token_index,
            "occurrences": self.occurrences,
            "layer": self.layer,
            "head": self.head,
            "input": {"shape": self.input_shape, **{name: part.tolist() for name, part in self.input_parts.items()}},
            "scale": self.scale,
            "k": self.k.tolist(),
            "v": self.v.tolist(),
            **{name: row[0] if single else row for name, row in rows.items()},
            "partners": [asdict(partner) for partner in self.partners],
            "habit": self.habit,
            "proof": asdict(self.proof),
            "compare": [asdict(comparison) for comparison in self.compare],
        }

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON; the file appears whole or not at all.

        Raises:
            InputError: the path cannot be written.
        """
        path = Path(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            partial.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
