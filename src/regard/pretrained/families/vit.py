"""The Vision Transformer (Dosovitskiy et al. 2021), where it encodes the images of a vision-encoder-decoder."""

from __future__ import annotations

from typing import Any

from regard.errors import InputError
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.family import Family
from regard.pretrained.renames import Rename, linear, packed_qkv
from regard.transformer import Config, Patches


def _extra_config(config_json: ConfigJSON) -> dict[str, Any]:
    sizes = {name: _pair(config_json, name) for name in ("image_size", "patch_size")}
    try:
        patches = Patches(**sizes, channels=config_json.positive_int("num_channels"))
    except ValueError as error:
        raise InputError(f"{config_json.path}: {error}") from error
    # An image encoder has no vocabulary; the config of the whole model takes the decoder's.
    return {"patches": patches, "max_positions": patches.num_tokens, "vocab_size": 1}


def _pair(config_json: ConfigJSON, name: str) -> tuple[int, int]:
    """Height and width, from one number for both or from two."""
    value = config_json[name]
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or any(type(size) is not int for size in pair):
        config_json.refuse(name, "it must be a whole number, or two: height and width")
    return pair[0], pair[1]


def _renames(config: Config) -> list[Rename]:
    layer = "encoder.layer.{n}."
    attention = layer + "attention."
    return [
        *linear("embeddings.patch", "embeddings.patch_embeddings.projection"),
        Rename("embeddings.class_token", ("embeddings.cls_token",), layout="row"),
        Rename("embeddings.position.weight", ("embeddings.position_embeddings",), layout="row"),
        *linear("blocks.{n}.attention_norm", layer + "layernorm_before"),
        *packed_qkv(
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
    fixed={"positions": "learned", "norm_position": "pre", "out_bias": True, "shared_embedding": False},
    extra_config=_extra_config,
    extra_keys=frozenset({"image_size", "num_channels", "patch_size"}),
    ignored_keys=frozenset({"encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings"}),
    renames=_renames,
    ignored_weights=("pooler.",),
)
