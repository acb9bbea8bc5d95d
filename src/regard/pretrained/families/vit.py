"""The Vision Transformer (Dosovitskiy et al. 2021), where it encodes the images of a vision-encoder-decoder."""

from __future__ import annotations

from typing import Any

from regard.errors import InputError
from regard.pretrained.config_json import Settings
from regard.pretrained.family import Family
from regard.pretrained.renames import Rename, linear, packed
from regard.transformer import Config, Patches

__all__ = ["VIT"]


def _more(settings: Settings) -> dict[str, Any]:
    sizes = {name: _pair(settings, name) for name in ("image_size", "patch_size")}
    try:
        patches = Patches(**sizes, channels=settings.whole("num_channels"))
    except ValueError as error:
        raise InputError(f"{settings.source}: {error}") from error
    # It reads no tokens of a vocabulary; the pair that it is part of says what is written.
    return {"patches": patches, "max_positions": patches.tokens, "vocab_size": 1}


def _pair(settings: Settings, name: str) -> tuple[int, int]:
    """Height and width; one number stands for both."""
    value = settings[name]
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or any(type(size) is not int for size in pair):
        settings.refuse(name, "it must be a whole number, or two: height and width")
    return pair[0], pair[1]


def _renames(config: Config) -> list[Rename]:
    layer = "encoder.layer.{n}."
    attention = layer + "attention."
    return [
        *linear("embeddings.patch", "embeddings.patch_embeddings.projection"),
        Rename("embeddings.start", ("embeddings.cls_token",), layout="row"),
        Rename("embeddings.position.weight", ("embeddings.position_embeddings",), layout="row"),
        *linear("blocks.{n}.attention_norm", layer + "layernorm_before"),
        *packed(
            config,
            "blocks.{n}.attention",
            attention + "attention",
            ("query", "key", "value"),
            bias=config.attention_bias,
        ),
        *linear("blocks.{n}.attention.out_proj", attention + "output.dense"),
        *linear("blocks.{n}.feed_forward_norm", layer + "layernorm_after"),
        *linear("blocks.{n}.feed_forward.up", layer + "intermediate.dense"),
        *linear("blocks.{n}.feed_forward.down", layer + "output.dense"),
        *linear("norm", "layernorm"),
    ]


VIT = Family(
    name="ViT",
    kind="encoder",
    fields={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "qkv_bias": "attention_bias",
    },
    defaults={
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
        "num_channels": 3,
        "qkv_bias": True,
    },
    always={"positions": "learned", "norm_position": "pre", "out_bias": True, "shared_embedding": False},
    more=_more,
    reads=frozenset({"image_size", "num_channels", "patch_size"}),
    without_effect=frozenset({"encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings"}),
    renames=_renames,
    on_top=("pooler.",),
)
