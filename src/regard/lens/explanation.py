"""The facts of an explained word, and their JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.errors import InputError
from regard.pretrained.checkpoint import read_object

__all__ = ["Comparison", "Explanation", "Input", "Partner", "Proof"]


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
    tolerance: float
    """How large it may be: a ten-thousandth of the largest value that the output is a mean of."""
    holds: bool
    """Whether it is within the tolerance. If not, do not trust the numbers: the model computes something else."""
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


@dataclass(frozen=True, eq=False)
class Input:
    """What goes into the first layer: for each token of the word, three vectors, their sum, and the sum normed."""

    shape: list[int]
    """[tokens, d_model] of the whole text."""
    token: Float[Tensor, "pieces d_model"]
    position: Float[Tensor, "pieces d_model"]
    segment: Float[Tensor, "pieces d_model"]
    sum: Float[Tensor, "pieces d_model"]
    normed: Float[Tensor, "pieces d_model"]


@dataclass(frozen=True, eq=False)
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
    num_layers: int
    num_heads: int
    layer: int
    head: int
    input: Input
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
    without_habit: Partner | None
    """The other token with the largest share among the heads that have no habit."""
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
        """The facts as plain lists and numbers, under the names that they have here.

        For a word of one token, ``token_index`` is a number and ``q``, ``scores``, ``scaled``, ``weights`` and
        ``output`` are flat lists; for a word of several they are lists with one entry per token.
        """
        facts: dict[str, Any] = _plain(self)
        if len(self.token_index) == 1:
            facts |= {name: facts[name][0] for name in _BY_PIECE}
        return facts

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON; the file appears whole or not at all.

        Raises:
            InputError: the path cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            _write(text, Path(path))
        except (OSError, RuntimeError, ValueError) as error:  # the latter two for names that no file can have
            raise InputError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """What `save` wrote.

        Raises:
            InputError: the file is missing or holds something else.
        """
        facts = read_object(Path(path))
        try:
            if isinstance(facts["token_index"], int):
                facts |= {name: [facts[name]] for name in _BY_PIECE}
            for name in ("q", "k", "v", "scores", "scaled", "weights", "output"):
                facts[name] = torch.tensor(facts[name], dtype=torch.float64)
            shape = facts["input"].pop("shape")
            facts["input"] = Input(shape, **{name: torch.tensor(part) for name, part in facts["input"].items()})
            facts["partners"] = [Partner(**partner) for partner in facts["partners"]]
            facts["without_habit"] = facts["without_habit"] and Partner(**facts["without_habit"])
            facts["proof"] = Proof(**facts["proof"])
            facts["compare"] = [Comparison(**comparison) for comparison in facts["compare"]]
            read = cls(**facts)
            if tuple(read.weights.shape) != (len(read.token_index), len(read.tokens)):
                raise ValueError(f"weights of shape {tuple(read.weights.shape)}")
            return read
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{path} does not hold an explanation that regard saved: {error!r}") from error


_BY_PIECE = ("token_index", "q", "scores", "scaled", "weights", "output")


def _plain(value: Any) -> Any:
    """Tensors and dataclasses as lists, numbers and dicts."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _write(text: str, target: Path) -> None:
    """Write a file whole or not at all. A device or a pipe has nothing to lose, and must not be replaced by a file."""
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    target = target.resolve()
    partial = target.with_name(f".{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
