"""An explained word: the facts of `Explanation` in groups, and their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Bool, Float
from regard.errors import InputError
from regard.files import to_builtins, write_json
from regard.lens import display
from regard.lens.text.explanation_schema import validate_explanation
from regard.pretrained.checkpoint import read_json_object

MAX_SHOWN_KEYS = 20
"""The most keys of a row that are shown, unless the caller says otherwise."""


@dataclass(frozen=True)
class ExplainedModel:
    """The model, and the stack of layers that contains the attention."""

    name: str
    kind: str
    """``encoder``, ``decoder`` or ``encoder-decoder``."""
    stack: str
    """The half of the model that contains the attention: ``encoder`` or ``decoder``."""
    num_layers: int
    """Of this stack."""
    num_heads: int


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of a text that are queries or keys."""

    tokens: list[str]
    ids: list[int]
    surface_forms: list[str]
    """The characters of the text that each token stands for; empty for a special token that the tokenizer added."""


@dataclass(frozen=True)
class ExplainedWord:
    """The word that is explained."""

    text: str
    """The word as it is written."""
    token_index: list[int]
    """The positions of its tokens, among the queries."""
    occurrences: list[list[int]]
    """The positions of every occurrence of the word; the first one is explained."""


@dataclass(frozen=True, eq=False)
class AttentionRow:
    """One head's attention of the word: one row for each of its tokens, by the definition in float64."""

    scale: float
    """The factor of the scores: in most models 1 / sqrt(d_key)."""
    q: Float[Tensor, "pieces d_key"]
    k: Float[Tensor, "keys d_key"]
    v: Float[Tensor, "keys d_value"]
    scores: Float[Tensor, "pieces keys"]
    scaled: Float[Tensor, "pieces keys"]
    weights: Float[Tensor, "pieces keys"]
    output: Float[Tensor, "pieces d_value"]
    capped: Float[Tensor, "pieces keys"] | None = None
    """The scores after the soft-cap; None without one."""
    biased: Float[Tensor, "pieces keys"] | None = None
    """The scores after the bias; None without one."""
    allowed: Bool[Tensor, "pieces keys"] | None = None
    """Whether the word may attend to a key; None if it may attend to all."""

    def __repr__(self) -> str:
        return _shapes(self)


@dataclass(frozen=True)
class Variant:
    """What the attention does besides softmax(q . k * scale) @ v."""

    pre_norm: bool = False
    """The layer's input is normed before it is projected."""
    kv_head: int | None = None
    """The head of k and v, where several heads of q share it."""
    qk_norm: bool = False
    """q and k are normed."""
    rotary: bool = False
    """q and k are rotated by their positions."""
    softcap: float | None = None
    """Scaled scores become softcap * tanh(scaled / softcap)."""
    bias: str | None = None
    """The bias that is added to the scores for the distance of two tokens: ``ALiBi`` or ``T5Relative``."""
    causal: bool = False
    """A token attends to itself and to earlier tokens only."""
    window: int | None = None
    """The number of tokens that a token may attend to, itself included; in an encoder on each side."""
    sink: float | None = None
    """The head's own score, which takes part in the softmax and has no value."""
    kernel: str = "fused"
    """The kernel of the model's own forward pass: `regard.Plan.kernel`."""


@dataclass(frozen=True, eq=False)
class InputVectors:
    """The input of the first layer at the word's tokens: the embeddings, their sum, and the normed sum.

    None for what the model does not have: position embeddings, token types, a norm.
    """

    shape: list[int]
    """[tokens, d_model] of the whole text."""
    token: Float[Tensor, "pieces d_model"]
    """The token embeddings, times sqrt(d_model) where the model does that."""
    position: Float[Tensor, "pieces d_model"] | None
    token_type: Float[Tensor, "pieces d_model"] | None
    sum: Float[Tensor, "pieces d_model"]
    normed: Float[Tensor, "pieces d_model"] | None

    def __repr__(self) -> str:
        return _shapes(self)


@dataclass(frozen=True)
class TopKey:
    """Another token, or in cross-attention a word of the source, and the head that gives it the largest weight."""

    token: str
    index: int
    weight: float
    layer: int
    head: int
    mean: float | None = None
    """The mean weight over all layers and heads."""


@dataclass(frozen=True)
class Proof:
    """The definition's output of the row, compared with the model's own."""

    max_error: float
    """The largest absolute difference between weights @ v in float64 and the output of the model's forward pass."""
    tolerance: float
    """The largest error that rounding explains: a ten-thousandth of the largest value in v."""
    verified: bool
    """Whether ``max_error`` is within the tolerance. If not, do not trust the numbers: the model computes others."""
    num_values: int
    """How many values were compared."""
    model_output: list[list[float]]
    """The model's own output: one list per token of the word."""


@dataclass(frozen=True)
class NextToken:
    """A token that a decoder may write after the word."""

    token: str
    """As the tokenizer spells it."""
    id: int
    text: str
    """What it adds to a text."""
    probability: float


@dataclass(frozen=True)
class Comparison:
    """The word in another sentence."""

    text: str
    token_index: list[int]
    cosine: list[float]
    """The cosine similarity of the word in the two sentences, at the input and after each layer."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """What attention does with one word of a text, in one head of one layer."""

    model: ExplainedModel
    text: str
    """The text that was given; in an encoder-decoder the source."""
    queries: TokenizedText
    """The text of the word: in a decoder's attentions of an encoder-decoder the target."""
    keys: TokenizedText
    """The tokens that the word may attend to: the same, or in cross-attention those of the source."""
    word: ExplainedWord
    layer: int
    head: int
    row: AttentionRow
    variant: Variant
    input: InputVectors
    top_keys: list[TopKey]
    """The other tokens of the text that the word may attend to, the one with the largest weight in any head first. In
    cross-attention the words of the source, the one with the largest mean weight first: the mean of all heads tells
    which word was translated, one head alone need not ("Jointly Learning to Align and Translate", Garg et al. 2019)."""
    positional_pattern: str | None
    """What nearly all tokens of the text do in this head; None if they differ."""
    content_head: TopKey | None
    """The largest weight among the heads without a positional pattern."""
    proof: Proof
    comparisons: list[Comparison]
    attention: str = "self"
    """``self``, or ``cross``: from the target to the source."""
    target: str | None = None
    """The output of an encoder-decoder, where the word belongs to it."""
    decoder_inputs: list[str] | None = None
    """In cross-attention the token that the decoder reads where it writes each query token: the one before."""
    next_tokens: list[NextToken] = field(default_factory=list)
    """Of a decoder the likeliest tokens after the word, the likeliest first; empty for other models."""

    def __str__(self) -> str:
        weight, best = self.row.weights.mean(dim=0).max(dim=0)
        cross = ", cross-attention" if self.attention == "cross" else ""
        return (
            f"{self.word.text!r} gives {self.keys.tokens[int(best)]!r} {weight:.4f} in layer {self.layer} head "
            f"{self.head} of {self.model.name}{cross}; the definition in float64 differs from the model by at most "
            f"{self.proof.max_error:.1e}"
        )

    def __repr__(self) -> str:
        where = f"layer {self.layer} head {self.head} of {self.model.name}"
        return (
            f"Explanation({self.word.text!r}, {where}, {self.attention}-attention over {len(self.keys.tokens)} tokens)"
        )

    def show(self, max_keys: int | None = MAX_SHOWN_KEYS, *, width: int | None = None) -> str:
        """What `regard explain` prints: the tokens, the weights, the arithmetic number by number, and the proof.

        ::

            print(regard.explain("Write a poem about a man fishing on a river bank.", "bank").show())

        Args:
            max_keys: of a text with more tokens, the word and so many of its strongest keys are listed; None for all.
            width: the columns; by default those of the terminal, and 110 where there is none.

        Returns:
            A text, which a prompt and a notebook show as it prints.

        Raises:
            ValueError: a width below 1.
        """
        return display.show_explanation(self, max_keys=max_keys, width=width)

    def _repr_html_(self) -> str:
        """The same view for notebooks."""
        return display.explanation_html(self, max_keys=MAX_SHOWN_KEYS)

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain lists and numbers, under the names that they have here.

        For a word of one token ``word.token_index`` is a number and the row's ``q``, ``scores``, ``scaled``,
        ``capped``, ``biased``, ``allowed``, ``weights`` and ``output`` are flat lists; for a word of several tokens
        they are lists with one entry per token.
        """
        facts: dict[str, Any] = to_builtins(self)
        if len(self.word.token_index) == 1:
            (facts["word"]["token_index"],) = self.word.token_index
            facts["row"] |= {name: facts["row"][name][0] for name in _PER_TOKEN if facts["row"][name] is not None}
        return facts

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON, by an atomic write.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """Read what `save` wrote.

        Raises:
            InputError: the file is missing or holds something else.
        """
        facts = read_json_object(Path(path))
        try:
            word, row = facts["word"], {name: value for name, value in facts["row"].items() if value is not None}
            if isinstance(word["token_index"], int):
                word["token_index"] = [word["token_index"]]
                row |= {name: [row[name]] for name in _PER_TOKEN if name in row}
            tensors = {
                name: torch.tensor(value, dtype=torch.bool if name == "allowed" else torch.float64)
                for name, value in row.items()
                if name != "scale"
            }
            vectors = facts["input"]
            vectors |= {
                n: torch.tensor(v, dtype=torch.float32) for n, v in vectors.items() if n != "shape" and v is not None
            }
            facts |= {
                "model": ExplainedModel(**facts["model"]),
                "queries": TokenizedText(**facts["queries"]),
                "keys": TokenizedText(**facts["keys"]),
                "word": ExplainedWord(**word),
                "row": AttentionRow(row["scale"], **tensors),
                "variant": Variant(**facts.get("variant", {})),
                "input": InputVectors(**vectors),
                "top_keys": [TopKey(**key) for key in facts["top_keys"]],
                "content_head": facts["content_head"] and TopKey(**facts["content_head"]),
                "proof": Proof(**facts["proof"]),
                "comparisons": [Comparison(**comparison) for comparison in facts["comparisons"]],
                "next_tokens": [NextToken(**token) for token in facts.get("next_tokens", [])],
            }
            explanation = cls(**facts)
            validate_explanation(explanation)
            return explanation
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
            raise InputError(f"{path} does not hold an explanation that regard saved: {error!r}") from error


def _shapes(facts: AttentionRow | InputVectors) -> str:
    """The fields of a group of facts, of a tensor its shape."""
    fields = [
        f"{name} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name} {value}"
        for name, value in vars(facts).items()
        if value is not None
    ]
    return f"{type(facts).__name__}({', '.join(fields)})"


_PER_TOKEN = ("q", "scores", "scaled", "capped", "biased", "allowed", "weights", "output")
"""The row's tensors with one entry per token of the word."""
