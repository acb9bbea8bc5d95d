"""The facts of an explained word, and their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.errors import InputError
from regard.files import plain, write_json
from regard.pretrained.checkpoint import read_object

__all__ = ["Comparison", "Explanation", "How", "Input", "Partner", "Proof"]


@dataclass(frozen=True)
class Partner:
    """Another token, or across texts a word of the source, and where the explained word gives it the largest share."""

    token: str
    index: int
    weight: float
    layer: int
    head: int
    mean: float | None = None
    """Its mean share over all layers and heads."""


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
    """What goes into the first layer for each token of the word: what is added, the sum, and the sum normed.

    None for what a model does not have: positions that turn queries and keys instead, segments, a norm.
    """

    shape: list[int]
    """[tokens, d_model] of the whole text."""
    token: Float[Tensor, "pieces d_model"]
    """The token's own vector, times sqrt(d_model) where the model has it so."""
    position: Float[Tensor, "pieces d_model"] | None
    segment: Float[Tensor, "pieces d_model"] | None
    sum: Float[Tensor, "pieces d_model"]
    normed: Float[Tensor, "pieces d_model"] | None


@dataclass(frozen=True)
class How:
    """What an attention does beside softmax(q . k * scale) @ v."""

    normed_first: bool = False
    """What goes into the layer is normed before it is projected."""
    kv_head: int | None = None
    """Which k and v the head has, where several heads share them."""
    qk_norm: bool = False
    """q and k are normed."""
    rotary: bool = False
    """q and k are turned by their positions."""
    softcap: float | None = None
    """Scaled scores become softcap * tanh(scaled / softcap)."""
    bias: str | None = None
    """What is added to the scores for the distance of two tokens: ``ALiBi`` or ``T5Relative``."""
    causal: bool = False
    """A token sees itself and those before it."""
    window: int | None = None
    """How far it sees, in tokens, itself counted; in an encoder to both sides."""
    sink: float | None = None
    """A score of the head itself, which takes part in the softmax and carries no value."""
    kernel: str = "fused"
    """What the model's own forward pass ran on: `regard.Plan.kernel`."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """What attention does with one word of a text, in one head of one layer.

    Rows belong to the tokens of the word, in order: one row for a word of one token.
    """

    model: str
    text: str
    """What was given: in an encoder-decoder the source."""
    tokens: list[str]
    """The tokens that the explained word is one of, or several: in a decoder's attentions those of the target."""
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
    """What the scores are multiplied by: in most models 1 / sqrt(d_key)."""
    q: Float[Tensor, "pieces d_key"]
    k: Float[Tensor, "keys d_key"]
    v: Float[Tensor, "keys d_value"]
    scores: Float[Tensor, "pieces keys"]
    scaled: Float[Tensor, "pieces keys"]
    weights: Float[Tensor, "pieces keys"]
    output: Float[Tensor, "pieces d_value"]
    partners: list[Partner]
    """The text's other tokens that the word can see, the one that gets the largest share in any head first. In
    cross-attention the words of the source, the one with the largest mean share first: averaged heads tell which word
    was translated, one head alone need not ("Jointly Learning to Align and Translate", Garg et al. 2019)."""
    habit: str | None
    """What nearly all tokens of this text do in this head, if they do the same."""
    without_habit: Partner | None
    """The other token with the largest share among the heads that have no habit."""
    proof: Proof
    compare: list[Comparison]
    kind: str = "encoder"
    """What the model is: ``encoder``, ``decoder``, ``encoder-decoder``."""
    attention: str = "self"
    """``self``, or ``cross``: from the target to the source."""
    target: str | None = None
    """The text that an encoder-decoder writes, where the word is one of it."""
    reads: list[str] | None = None
    """In cross-attention, the token that the decoder reads where it writes each of ``tokens``: the one before."""
    key_tokens: list[str] | None = None
    """The tokens that are looked at, where they are not ``tokens``: in cross-attention those of the source."""
    key_ids: list[int] | None = None
    key_written: list[str] | None = None
    capped: Float[Tensor, "pieces keys"] | None = None
    """The scores after the soft-cap, where there is one."""
    biased: Float[Tensor, "pieces keys"] | None = None
    """The scores after the bias, where there is one."""
    may: Bool[Tensor, "pieces keys"] | None = None
    """Whether the word may attend to a key, where some are masked."""
    how: How = field(default_factory=How)

    @property
    def keys(self) -> list[str]:
        """The tokens that are looked at."""
        return self.tokens if self.key_tokens is None else self.key_tokens

    @property
    def stack(self) -> str:
        """Which half of the model the attention is in: ``encoder`` or ``decoder``."""
        return (
            "encoder"
            if self.kind == "encoder" or (self.kind == "encoder-decoder" and self.target is None)
            else "decoder"
        )

    def __str__(self) -> str:
        share, best = self.weights.mean(dim=0).max(dim=0)
        cross = ", cross-attention" if self.attention == "cross" else ""
        return (
            f"{self.token!r} gives {self.keys[int(best)]!r} {share:.4f} in layer {self.layer} head {self.head} of "
            f"{self.model}{cross}; the definition in float64 differs from the model by at most "
            f"{self.proof.largest_difference:.1e}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain lists and numbers, under the names that they have here.

        For a word of one token, ``token_index`` is a number and ``q``, ``scores``, ``scaled``, ``weights``, ``output``
        and, where there are any, ``capped``, ``biased`` and ``may`` are flat lists; for a word of several they are
        lists with one entry per token.
        """
        facts: dict[str, Any] = plain(self)
        if len(self.token_index) == 1:
            facts |= {name: facts[name][0] for name in _BY_PIECE if facts[name] is not None}
        return facts

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON; the file appears whole or not at all.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """What `save` wrote.

        Raises:
            InputError: the file is missing or holds something else.
        """
        facts = read_object(Path(path))
        try:
            if isinstance(facts["token_index"], int):
                facts |= {name: [facts[name]] for name in _BY_PIECE if facts.get(name) is not None}
            for name in (*_NUMBERS, "capped", "biased", "may"):
                if name in _NUMBERS or facts.get(name) is not None:
                    facts[name] = torch.tensor(facts[name], dtype=torch.bool if name == "may" else torch.float64)
            shape = facts["input"].pop("shape")
            parts: dict[str, Any] = {
                name: None if part is None else torch.tensor(part) for name, part in facts["input"].items()
            }
            facts["input"] = Input(shape, **parts)
            facts["how"] = How(**facts.get("how", {}))
            facts["partners"] = [Partner(**partner) for partner in facts["partners"]]
            facts["without_habit"] = facts["without_habit"] and Partner(**facts["without_habit"])
            facts["proof"] = Proof(**facts["proof"])
            facts["compare"] = [Comparison(**comparison) for comparison in facts["compare"]]
            read = cls(**facts)
            if tuple(read.weights.shape) != (len(read.token_index), len(read.keys)):
                raise ValueError(f"weights of shape {tuple(read.weights.shape)}")
            return read
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{path} does not hold an explanation that regard saved: {error!r}") from error


_NUMBERS = ("q", "k", "v", "scores", "scaled", "weights", "output")
_BY_PIECE = ("token_index", "q", "scores", "scaled", "capped", "biased", "may", "weights", "output")
