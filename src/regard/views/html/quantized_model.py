"""An encoder in 8 bits, for a page in which it runs.

Each row of a matrix (a linear layer's output channel, a token's vector) is rounded to integers from -127 to 127 times
the row's scale, a 127th of its largest number: symmetric quantization per channel (Krishnamoorthi 2018, section 3.1).
So no number moves by more than half its row's scale. Biases and LayerNorms stay in float32. static/model/weights.js
reads the bytes, static/model/encoder.js computes with them.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._shapes import Float, Int
from regard.errors import InputError
from regard.lens import watch
from regard.pretrained import Pretrained
from regard.transformer import Encoder
from regard.views.html.codec import encode_seven_bits

MAX_INT8 = 127
"""The largest integer; -128 is not used, so that both signs have the same range."""

MIN_ROW = 2.0**-100
"""Rows without any larger number become zeros: the scale of a smaller one would have few bits left in float32."""

MAX_PART = 2**20
"""The characters of an element of the page. Of 23 million in one, Chromium's parser stops the page for 100 ms."""

REQUIRED: dict[str, tuple[Any, str]] = {
    "positions": ("learned", "the page's model adds learned position vectors"),
    "norm": ("layer", "the page's model has LayerNorm"),
    "norm_position": ("post", "the page's model has a norm after each sublayer"),
    "embedding_norm": (True, "the page's model has a LayerNorm on its embeddings"),
    "scale_embedding": (False, "the page's model does not scale its embeddings"),
    "activation": ("gelu", "the page's model has the exact GELU"),
    "gated": (False, "the page's model has no gated feed-forward network"),
    "attention_bias": (True, "the page's model has biases of queries, keys and values"),
    "out_bias": (True, "the page's model has a bias of the attention's output"),
    "feed_forward_bias": (True, "the page's model has biases in its feed-forward network"),
    "softcap": (None, "the page's model caps no scores"),
    "sinks": (False, "the page's model has no attention sinks"),
    "qk_norm": (False, "the page's model does not normalize queries and keys"),
    "windows": (None, "in the page's model every token attends to every other"),
    "scale_by_inverse_layer": (False, "in the page's model all layers scale their scores alike"),
    "patches": (None, "the page's model reads texts"),
}
"""The choices of a config that the page's model computes, and why another one is refused."""


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A matrix as integers and one scale for each row."""

    values: Int[Tensor, "rows columns"]
    """int8, from -127 to 127."""
    scales: Float[Tensor, " rows"]
    """float32; 0 for a row of zeros."""

    def dequantize(self) -> Float[Tensor, "rows columns"]:
        """The numbers that the page computes with: values times scales, in float32."""
        return self.values.float() * self.scales[:, None]

    @property
    def error_bound(self) -> Float[Tensor, " rows"]:
        """For each row the most by which a number differs from the full one: half the scale, and rounding in float32.

        The quotient and the product, up to 127 scales, are rounded to 24 bits each. A row of smaller numbers than
        `MIN_ROW` is all zeros.
        """
        return (self.scales * (0.5 + MAX_INT8 * 2.0**-23)).where(self.scales > 0, MIN_ROW)


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """An encoder whose matrices are in 8 bits."""

    full: Pretrained
    """The model as it was loaded."""
    matrices: dict[str, QuantizedMatrix]
    vectors: dict[str, Float[Tensor, " size"]]
    """Biases and LayerNorms, float32."""

    @property
    def config(self) -> dict[str, Any]:
        """The sizes for the page, `EncoderConfig` in static/model/weights.js."""
        config, pooling = self.full.config, self.full.pooling
        assert pooling is not None  # quantize_model refuses other models
        scale = config.attention_scale
        return {
            "vocab_size": config.vocab_size,
            "d_model": config.d_model,
            "num_layers": config.num_layers,
            "num_heads": config.num_heads,
            "d_ff": config.d_ff,
            "max_positions": config.max_positions,
            "first_position": config.first_position,
            "num_token_types": config.num_token_types,
            "norm_eps": config.norm_eps,
            "attention_scale": config.head_dim**-0.5 if scale is None else scale,
            "pooling": {"mode": pooling.mode, "normalize": pooling.normalize},
        }

    def dequantize(self) -> Pretrained:
        """The model with exactly the weights that the page computes with, in float32."""
        model = copy.deepcopy(self.full.model).float()
        weights = {name: matrix.dequantize() for name, matrix in self.matrices.items()} | self.vectors
        with torch.no_grad():
            for name, parameter in _parameters(model):
                parameter.copy_(weights[name])
        return replace(self.full, model=model)

    def bytes(self) -> bytes:
        """The weights as the page unpacks them: all scales and vectors in float32, then all integers, in order."""
        names = [name for name, _ in _parameters(self.full.model)]
        floats = [self.matrices[name].scales if name in self.matrices else self.vectors[name] for name in names]
        integers = [self.matrices[name].values for name in names if name in self.matrices]
        arrays = [t.cpu().numpy().astype("<f4") for t in floats] + [t.cpu().numpy() for t in integers]
        return b"".join(array.tobytes() for array in arrays)

    def pack(self) -> PackedModel:
        """The model for the page. About 1 second for MiniLM's 22.7 million weights."""
        # Only the frequencies of the bytes repeat: a search for longer repetitions takes time and finds none.
        compressor = zlib.compressobj(9, zlib.DEFLATED, 31, 9, zlib.Z_HUFFMAN_ONLY)
        packed = compressor.compress(self.bytes()) + compressor.flush()
        return PackedModel(self.config, encode_seven_bits(packed), len(packed))

    def compare(self, texts: Sequence[str]) -> QuantizationDistance:
        """How far the 8-bit weights are from the full ones, and what that changes in some texts.

        Raises:
            InputError: no text; a text that the model cannot read.
        """
        if not texts:
            raise InputError("compare the model in 8 bits with the full one by at least one text")
        quantized = self.dequantize()
        pairs = [(_read(self.full, text), _read(quantized, text)) for text in texts]
        return QuantizationDistance(
            num_texts=len(texts),
            relative_error=_relative_error(self),
            min_vector_cosine=min(_min_cosine(a.vector, b.vector) for a, b in pairs),
            min_token_cosine=min(_min_cosine(a.hidden_states, b.hidden_states) for a, b in pairs),
            max_attention_error=max(float((a.attention - b.attention).abs().max()) for a, b in pairs),
        )


@dataclass(frozen=True)
class PackedModel:
    """A model as the page carries it."""

    config: dict[str, Any]
    """`EncoderConfig` in static/model/weights.js."""
    text: str
    """The weights, compressed by gzip, seven bits in each character (`encode_seven_bits`)."""
    length: int
    """The number of bytes that gzip wrote."""

    @property
    def parts(self) -> list[str]:
        """The text for elements of the page: a browser reads a longer one, and sends it to a worker, with a delay."""
        return [self.text[at : at + MAX_PART] for at in range(0, len(self.text), MAX_PART)]


@dataclass(frozen=True)
class QuantizationDistance:
    """How far a model in 8 bits is from the full one."""

    num_texts: int
    """On how many texts the models were compared."""
    relative_error: float
    """The root mean square of all errors of the weights, over that of the weights."""
    min_vector_cosine: float
    """The smallest cosine of a text's vector with the full model's."""
    min_token_cosine: float
    """The smallest cosine of a token's last hidden state with the full model's."""
    max_attention_error: float
    """The largest difference of an attention weight from the full model's, over all layers and heads."""

    def notes(self) -> list[str]:
        """The facts as lines for a reader."""
        texts = "the text" if self.num_texts == 1 else f"the {self.num_texts} texts"
        return [
            "Weights in 8 bits: each differs from the full one by at most "
            f"{0.5 / MAX_INT8:.1%} of the largest in its row, all of them by {self.relative_error:.1%} (root mean "
            "square).",
            f"For {texts} that this page was made with, no attention weight differs from the full model's by more than "
            f"{ceil(1000 * self.max_attention_error) / 1000:g}; the cosine of the text's vector with the full model's "
            f"is {floor(10_000 * self.min_vector_cosine) / 10_000:g} or more.",
        ]


def quantize_model(pretrained: Pretrained) -> QuantizedModel:
    """An encoder of the BERT family in 8 bits.

    Example:
        ``quantize_model(regard.load()).pack()``

    Raises:
        InputError: a model that the page cannot compute, and why; weights that are not finite.
    """
    _require_supported(pretrained)
    matrices, vectors = {}, {}
    for name, parameter in _parameters(pretrained.model):
        weight = parameter.detach().float().cpu()
        if not bool(weight.isfinite().all()):
            raise InputError(f"{name} of {pretrained.name} has numbers that are not finite: the weights are damaged")
        if weight.ndim == 2:
            matrices[name] = quantize_rows(weight)
        else:
            vectors[name] = weight.clone()
    return QuantizedModel(pretrained, matrices, vectors)


def dequantize(quantized: QuantizedModel) -> Pretrained:
    """The model with exactly the weights that the page computes with, in float32."""
    return quantized.dequantize()


def quantize_rows(weight: Float[Tensor, "rows columns"]) -> QuantizedMatrix:
    """A matrix as integers, with the scale of each row a 127th of its largest number."""
    largest = weight.abs().amax(1)
    scales = (largest / MAX_INT8).where(largest >= MIN_ROW, 0.0)
    divisors = scales.where(scales > 0, 1.0)
    values = (weight / divisors[:, None]).round().clamp(-MAX_INT8, MAX_INT8).to(torch.int8)
    return QuantizedMatrix(values, scales)


def _require_supported(pretrained: Pretrained) -> None:
    name, config = pretrained.name, pretrained.config
    if pretrained.kind != "encoder" or not isinstance(pretrained.model, Encoder):
        article = "a" if pretrained.kind == "decoder" else "an"
        raise InputError(
            f"{name} is {article} {pretrained.kind}, and a page carries encoders of the BERT family only; for other "
            "models there is `regard live`"
        )
    for field, (value, reason) in REQUIRED.items():
        if getattr(config, field) != value:
            raise InputError(f"{name} has {field}={getattr(config, field)!r}, which a page cannot compute: {reason}")
    if config.head_dim * config.num_heads != config.d_model or config.num_kv_heads not in (None, config.num_heads):
        raise InputError(
            f"{name} has num_heads={config.num_heads}, num_kv_heads={config.num_kv_heads} and d_key={config.head_dim}, "
            f"which a page cannot compute: its heads are together as wide as d_model={config.d_model}"
        )
    if pretrained.pooling is None:
        raise InputError(f"how {name} makes one vector of a text is not known: load it once with a network")


def _parameters(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The parameters that the page needs, in the order of `parameters` in static/model/weights.js."""
    yield from ((name, p) for name, p in model.named_parameters() if not name.startswith("mlm_head."))


class _Reading(NamedTuple):
    """What a model makes of a text."""

    hidden_states: Float[Tensor, "tokens d_model"]
    """After the last layer."""
    vector: Float[Tensor, "1 d_model"]
    attention: Float[Tensor, "layers heads tokens tokens"]


def _read(pretrained: Pretrained, text: str) -> _Reading:
    ids = torch.tensor(pretrained.encode(text).ids, device=pretrained.device)
    with torch.no_grad(), watch(pretrained.model) as recording:
        hidden_states = pretrained.model(ids)
    attention = torch.stack([recording[path][0] for path in recording])
    assert pretrained.pooling is not None  # quantize_model refuses other models
    return _Reading(hidden_states, pretrained.pooling(hidden_states, torch.tensor([len(ids)])), attention)


def _min_cosine(a: Float[Tensor, "rows d_model"], b: Float[Tensor, "rows d_model"]) -> float:
    return float(torch.cosine_similarity(a.double(), b.double(), dim=-1).min())


def _relative_error(quantized: QuantizedModel) -> float:
    errors = squares = 0.0
    for name, parameter in _parameters(quantized.full.model):
        weight = parameter.detach().float().cpu()
        squares += float(weight.square().sum(dtype=torch.float64))
        if name in quantized.matrices:
            difference = quantized.matrices[name].dequantize() - weight
            errors += float(difference.square().sum(dtype=torch.float64))
    return float((errors / squares) ** 0.5)
