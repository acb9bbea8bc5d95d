"""The numbers and choices that make a transformer, in the paper's words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from regard.attention.positions.scaling import Scaling
from regard.transformer.feed_forward import ACTIVATIONS
from regard.transformer.patches import Patches

__all__ = ["Config", "SpecialTokens"]

Positions = Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["post", "pre", "both"]


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The token ids that a model was trained to read and write in a special way."""

    decoder_start: int | None = None
    """The first token that the decoder of an encoder-decoder reads."""
    eos: tuple[int, ...] = ()
    """Tokens that end a text."""
    pad: int | None = None
    """What shorter texts of a batch are filled with."""
    forced_bos: int | None = None
    """What every generated text begins with, if anything (``forced_bos_token_id``)."""
    forced_eos: int | None = None
    """What a generated text ends with when it runs into the limit (``forced_eos_token_id``)."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and choices of one stack of blocks.

    What has a default is the architecture of "Attention Is All You Need": sinusoidal positions, LayerNorm after each
    sum, ReLU, embeddings times sqrt(d_model) that are also the output's weights.

    Raises:
        ValueError: a size below 1, a share outside 0 to 1, numbers that do not divide, an unknown choice.
    """

    vocab_size: int
    """How many different tokens there are; beside an image encoder, which reads none, those of its decoder."""
    d_model: int
    """Width of every token vector between the layers."""
    num_layers: int
    """How many blocks are stacked; N in the paper."""
    num_heads: int
    """Query heads of each attention; h in the paper."""
    d_ff: int
    """Width of the feed-forward network's hidden layer."""

    patches: Patches | None = None
    """How an image encoder cuts its images; None where the tokens are those of a text."""
    max_positions: int | None = None
    """The longest input, in tokens; None where any length has positions."""
    positions: Positions = "sinusoidal"
    """``sinusoidal`` and ``learned`` are added to the token vectors, ``rotary`` turns queries and keys, ``alibi`` and
    ``t5`` are added to the scores."""
    sinusoidal_halves: bool = False
    """All sines before all cosines, as in Marian."""
    first_position: int = 0
    """Which row of the learned positions the first token takes (RoBERTa, BART: 2)."""
    rotary_base: float | int = 10_000.0
    """The base of the rotary positions' frequencies."""
    rotary_scaling: Scaling | None = None
    """How rotary positions are stretched: a `Linear`, `DynamicNTK`, `Llama3` or `YaRN` of `regard.positions`."""
    t5_buckets: int = 32
    """Buckets of T5's relative positions."""
    t5_max_distance: int = 128
    """Distances from this one on share a bucket."""

    num_token_types: int = 0
    """How many kinds of segment a token can belong to (BERT: 2, sentence A and B); 0: there are none."""
    scale_embedding: bool = True
    """Token vectors are multiplied by sqrt(d_model) (paper, section 3.4)."""
    embedding_norm: bool = False
    """A norm on the sum of token, position and segment (BERT, BART)."""

    norm: Norm = "layer"
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019)."""
    norm_position: NormPosition = "post"
    """``post``: norm(x + sublayer(x)), the paper's; ``pre``: x + sublayer(norm(x)), and a norm after the last block
    (GPT-2); ``both``: x + norm(sublayer(norm(x))) (Gemma 2)."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    norm_plus_one: bool = False
    """RMSNorm multiplies by 1 + weight (Gemma)."""

    num_kv_heads: int | None = None
    """Key and value heads (grouped-query attention); num_heads by default."""
    d_key: int | None = None
    """Width of a head; d_model / num_heads by default."""
    attention_bias: bool = False
    """Whether the query, key and value projections have a bias. The paper's have none."""
    out_bias: bool = False
    """Whether the attention's output projection has a bias."""
    attention_scale: float | int | None = None
    """What scores are multiplied by; 1 / sqrt(d_key) by default (T5: 1)."""
    softcap: float | int | None = None
    """Bound of the scaled scores (Gemma 2)."""
    sinks: bool = False
    """One learned score per head that carries no value (gpt-oss)."""
    qk_norm: bool = False
    """Each head's query and key are RMS-normed (Qwen3)."""
    windows: tuple[int | None, ...] | None = None
    """For each layer how many positions a token sees up to its own, which counts; None: all. In an encoder a window
    reaches as far to the other side."""

    activation: str = "relu"
    """The feed-forward network's activation, a key of `regard.transformer.feed_forward.ACTIVATIONS`."""
    gated: bool = False
    """Whether it is multiplied with a second projection (GLU; Shazeer 2020)."""
    feed_forward_bias: bool = True
    """Whether the feed-forward network's two layers have a bias."""

    tie_word_embeddings: bool = True
    """The output's weights are the token vectors (paper, section 3.4)."""
    lm_head_bias: bool = False
    """A number for each token, added to the logits (Marian, BART)."""
    logit_scale: float | int | None = None
    """What the last state is multiplied by before it becomes logits (T5: d_model ** -0.5)."""
    logit_softcap: float | int | None = None
    """Bound of the logits (Gemma 2)."""
    mlm_head: bool = False
    """An encoder with the head that guesses masked tokens (BERT's ``cls.predictions``)."""

    dropout: float | int = 0.1
    """Share of each sub-layer's output dropped in training (paper, section 5.4)."""
    attention_dropout: float | int = 0.0
    """Share of the attention weights dropped in training."""
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    """Token ids with a meaning of their own."""
    decoder: Config | None = None
    """The decoder's, where an encoder-decoder's two stacks differ."""
    shared_embedding: bool = True
    """Encoder and decoder share their token vectors (paper, section 3.4)."""

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "num_layers", "num_heads", "d_ff", "t5_buckets", "t5_max_distance")
        optional = ("max_positions", "num_kv_heads", "d_key")
        for name in (*sizes, *(name for name in optional if getattr(self, name) is not None)):
            size = getattr(self, name)
            if type(size) is not int or not 1 <= size < 2**31:
                raise ValueError(f"{name}={size!r} must be a whole number, at least 1 and below 2**31")
        for name in ("num_token_types", "first_position"):
            size = getattr(self, name)
            if type(size) is not int or not 0 <= size < 2**31:
                raise ValueError(f"{name}={size!r} must be a whole number, at least 0 and below 2**31")
        for name in ("norm_eps", "dropout", "attention_dropout"):
            share = getattr(self, name)
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise ValueError(f"{name}={share!r} must be a number from 0 to 1")
        for name in ("softcap", "logit_softcap"):
            bound = getattr(self, name)
            if bound is not None and (type(bound) not in (int, float) or not bound > 0):
                raise ValueError(f"{name}={bound!r} must be a number above 0")
        if self.attention_scale is not None and not math.isfinite(self.attention_scale):
            raise ValueError(f"attention_scale={self.attention_scale} must be a finite number")
        for name, known in (("positions", Positions), ("norm", Norm), ("norm_position", NormPosition)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(get_args(known))}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.d_key is None and self.d_model % self.num_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into num_heads={self.num_heads}")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} cannot share num_kv_heads={self.num_kv_heads} evenly")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"positions='rotary' turn dimensions in pairs; here a head has d_key={self.head_dim}")
        if self.positions == "learned" and self.max_positions is None:
            raise ValueError("positions='learned' needs max_positions: so many vectors are learned")
        if self.norm_plus_one and self.norm != "rms":
            raise ValueError(f"norm_plus_one is for norm='rms'; got norm={self.norm!r}")
        if self.windows is not None and len(self.windows) != self.num_layers:
            raise ValueError(f"windows={self.windows} must say one for each of num_layers={self.num_layers}")
        if any(window is not None and (type(window) is not int or window < 1) for window in self.windows or ()):
            raise ValueError(
                f"windows={self.windows}: a window counts the token itself, so it is a whole number, at least 1"
            )

    @property
    def head_dim(self) -> int:
        """Width of a head: d_key, or d_model / num_heads."""
        return self.d_model // self.num_heads if self.d_key is None else self.d_key

    def window(self, layer: int) -> int | None:
        """How many positions a token of this layer sees up to its own."""
        return None if self.windows is None else self.windows[layer]
