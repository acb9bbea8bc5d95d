"""The sizes and choices that define a transformer, named as in the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from regard.attention.positions.scaling import Scaling
from regard.attention.validation import MAX_FLOAT32
from regard.transformer.feed_forward import ACTIVATIONS
from regard.transformer.patches import Patches

Positions = Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]
Norm = Literal["layer", "rms"]
NormPosition = Literal["post", "pre", "both"]


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The token ids with a special meaning in the model's training."""

    decoder_start: int | None = None
    """The first token that the decoder of an encoder-decoder reads."""
    eos: tuple[int, ...] = ()
    """Tokens that end a text."""
    pad: int | None = None
    """The token that pads the shorter texts of a batch."""
    forced_bos: int | None = None
    """The first token of every generated text, if it is fixed (``forced_bos_token_id``)."""
    forced_eos: int | None = None
    """The last token of a generated text that reaches the limit (``forced_eos_token_id``)."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and choices of one stack of blocks.

    The defaults are the architecture of "Attention Is All You Need": sinusoidal positions, LayerNorm after each sum,
    ReLU, embeddings times sqrt(d_model) that are also the output's weights.

    Raises:
        ValueError: a size below 1, a rate outside 0 to 1, numbers that do not divide, an unknown choice.
    """

    vocab_size: int
    """How many different tokens there are; with an image encoder, which reads none, the decoder's."""
    d_model: int
    """Width of every token vector between the layers."""
    num_layers: int
    """The number of blocks; N in the paper."""
    num_heads: int
    """Query heads of each attention; h in the paper."""
    d_ff: int
    """Width of the feed-forward network's hidden layer."""

    patches: Patches | None = None
    """The sizes of an image encoder's images and patches; None for text."""
    max_positions: int | None = None
    """The longest input, in tokens; None if the positions allow any length."""
    positions: Positions = "sinusoidal"
    """``sinusoidal`` and ``learned`` are added to the token vectors, ``rotary`` rotates queries and keys, ``alibi`` and
    ``t5`` are added to the scores."""
    sinusoidal_halves: bool = False
    """All sines before all cosines, as in Marian; by default they alternate."""
    first_position: int = 0
    """The row of the learned positions for the first token (RoBERTa, BART: 2)."""
    rotary_base: float | int = 10_000.0
    """The base of the rotary positions' frequencies."""
    rotary_scaling: Scaling | None = None
    """A `Linear`, `DynamicNTK`, `Llama3` or `YaRN` of `regard.positions`, which scales them to longer inputs."""
    t5_buckets: int = 32
    """Buckets of T5's relative positions."""
    t5_max_distance: int = 128
    """All longer distances share a bucket."""

    num_token_types: int = 0
    """How many token types there are (BERT: 2, sentence A and B); 0: none."""
    scale_embedding: bool = True
    """Token vectors are multiplied by sqrt(d_model) (paper, section 3.4)."""
    embedding_norm: bool = False
    """A norm on the sum of the vectors of token, position and token type (BERT, BART)."""

    norm: Norm = "layer"
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019)."""
    norm_position: NormPosition = "post"
    """``post``: norm(x + sublayer(x)), the paper's; ``pre``: x + sublayer(norm(x)), and a norm after the last block
    (GPT-2); ``both``: x + norm(sublayer(norm(x))) (Gemma 2)."""
    norm_eps: float = 1e-5
    """The number that every norm adds to the variance."""
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
    """The scores are multiplied by it; 1 / sqrt(d_key) by default (T5: 1)."""
    scale_by_inverse_layer: bool = False
    """Whether the scores of layer n, counted from 0, are also divided by n + 1 (``scale_attn_by_inverse_layer_idx`` of
    GPT-2; Karamcheti et al. 2021, "Mistral")."""
    softcap: float | int | None = None
    """The limit of the soft cap on scaled scores (Gemma 2)."""
    sinks: bool = False
    """One learned score per head without a value, an attention sink (gpt-oss)."""
    qk_norm: bool = False
    """An RMSNorm on each head's query and key (Qwen3)."""
    windows: tuple[int | None, ...] | None = None
    """For each layer how many positions a token may attend to, up to and including its own; None: all. In an encoder a
    window has as many positions on the other side."""

    activation: str = "relu"
    """The feed-forward network's activation, a key of `regard.transformer.feed_forward.ACTIVATIONS`."""
    gated: bool = False
    """Whether the activation is multiplied by a second projection (GLU; Shazeer 2020)."""
    feed_forward_bias: bool = True
    """Whether the feed-forward network's two layers have a bias."""

    tie_word_embeddings: bool = True
    """The output projection is the token embedding (paper, section 3.4)."""
    lm_head_bias: bool = False
    """A bias of the logits (Marian, BART)."""
    logit_scale: float | int | None = None
    """The last hidden states are multiplied by it before the output projection (T5: d_model ** -0.5)."""
    logit_softcap: float | int | None = None
    """The limit of the soft cap on the logits (Gemma 2)."""
    mlm_head: bool = False
    """Whether an encoder has the masked-language-model head (BERT's ``cls.predictions``)."""

    dropout: float | int = 0.1
    """The dropout rate of each sub-layer's output (paper, section 5.4)."""
    attention_dropout: float | int = 0.0
    """The dropout rate of the attention weights."""
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
            rate = getattr(self, name)
            if type(rate) not in (int, float) or not 0 <= rate <= 1:
                raise ValueError(f"{name}={rate!r} must be a number from 0 to 1")
        for name in ("softcap", "logit_softcap"):
            bound = getattr(self, name)
            if bound is not None and (type(bound) not in (int, float) or not 0 < bound <= MAX_FLOAT32):
                raise ValueError(f"{name}={bound!r} must be a number above 0, and one of float32")
        if self.attention_scale is not None and not math.isfinite(self.attention_scale):
            raise ValueError(f"attention_scale={self.attention_scale} must be a finite number")
        for name, choices in (("positions", Positions), ("norm", Norm), ("norm_position", NormPosition)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(get_args(choices))}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.d_key is None and self.d_model % self.num_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into num_heads={self.num_heads}")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} cannot share num_kv_heads={self.num_kv_heads} evenly")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"positions='rotary' turn dimensions in pairs; here a head has d_key={self.head_dim}")
        if self.positions == "learned" and self.max_positions is None:
            raise ValueError("positions='learned' needs max_positions, the number of learned vectors")
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
        """How many positions a token of this layer may attend to, up to its own; None: all."""
        return None if self.windows is None else self.windows[layer]

    def scale(self, layer: int) -> float | int | None:
        """What the scores of this layer are multiplied by; None: 1 / sqrt(d_key)."""
        if not self.scale_by_inverse_layer:
            return self.attention_scale
        scale = float(self.head_dim) ** -0.5 if self.attention_scale is None else self.attention_scale
        return scale / (layer + 1)
