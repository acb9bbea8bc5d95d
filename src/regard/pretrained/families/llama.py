"""The Llama family (Touvron et al. 2023), with Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025).

They differ in windows, in biases and in the norm of queries and keys; their weights have the same names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.positions.scaling import inverse_frequencies
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.family import ConstantTensor, Family
from regard.pretrained.renames import Rename, linear, packed_qkv
from regard.pretrained.rope_config import ROPE_KEYS, WINDOW_KEYS, rope_fields, window_fields
from regard.transformer import Config

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "d_key",
    "intermediate_size": "d_ff",
    "rms_norm_eps": "norm_eps",
    "hidden_act": "activation",
    "attention_dropout": "attention_dropout",
    "tie_word_embeddings": "tie_word_embeddings",
}

DEFAULTS = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}

FIXED = {
    "scale_embedding": False,
    "norm": "rms",
    "norm_position": "pre",
    "gated": True,
    "feed_forward_bias": False,
    "dropout": 0.0,
}

IGNORED_KEYS = frozenset({"max_sequence_length", "pretraining_tp"})


def attention(config: Config) -> list[Rename]:
    """The attention of a layer, also Gemma's."""
    name = "layers.{n}.self_attn"
    projections = ("q_proj", "k_proj", "v_proj")
    norms = ("q_norm", "k_norm") if config.qk_norm else ()
    return [
        *packed_qkv(config, "blocks.{n}.attention", name, projections, bias=config.attention_bias),
        *linear("blocks.{n}.attention.out_proj", name + ".o_proj", bias=config.out_bias),
        *(Rename(f"blocks.{{n}}.attention.{norm}.weight", (f"{name}.{norm}.weight",)) for norm in norms),
    ]


def tied_weights(config: Config) -> list[tuple[str, ...]]:
    """The token embedding and the output projection, where the config ties them."""
    return [("embed_tokens.weight", "lm_head.weight")] if config.tie_word_embeddings else []


def _renames(config: Config) -> list[Rename]:
    mlp = "layers.{n}.mlp."
    parts = ("weight", "bias") if config.feed_forward_bias else ("weight",)
    return [
        Rename("embeddings.token.weight", ("embed_tokens.weight",)),
        *attention(config),
        *linear("blocks.{n}.attention_norm", "layers.{n}.input_layernorm", bias=False),
        *(
            Rename(f"blocks.{{n}}.feed_forward.up.{part}", (f"{mlp}gate_proj.{part}", f"{mlp}up_proj.{part}"))
            for part in parts
        ),
        *linear("blocks.{n}.feed_forward.down", mlp + "down_proj", bias=config.feed_forward_bias),
        *linear("blocks.{n}.feed_forward_norm", "layers.{n}.post_attention_layernorm", bias=False),
        *linear("norm", "norm", bias=False),
        *([] if config.tie_word_embeddings else linear("lm_head", "lm_head", bias=False)),
    ]


def _is_inverse_frequencies(frequencies: Tensor, config: Config) -> bool:
    expected = inverse_frequencies(config.rotary_base, config.head_dim, torch.zeros(1))
    return frequencies.shape == expected.shape and torch.allclose(frequencies.float(), expected, rtol=1e-2)


FREQUENCIES = ConstantTensor("layers.{n}.self_attn.rotary_emb.inv_freq", _is_inverse_frequencies, "base^(-2i / d)")
"""Older files store the rotary frequencies, some of them in half precision."""


def _llama(config_json: ConfigJSON) -> dict[str, Any]:
    bias = config_json.boolean("attention_bias")
    return {
        **rope_fields(config_json),
        "attention_bias": bias,
        "out_bias": bias,
        "feed_forward_bias": config_json.boolean("mlp_bias"),
    }


def _mistral(config_json: ConfigJSON) -> dict[str, Any]:
    return {**rope_fields(config_json), **window_fields(config_json)}


def _qwen(config_json: ConfigJSON) -> dict[str, Any]:
    """With ``use_sliding_window``, the layers from ``max_window_layers`` on have a window; without it, no layer has."""
    if not config_json.boolean("use_sliding_window"):
        types = config_json.get("layer_types") or []
        if not isinstance(types, list) or any(each != "full_attention" for each in types):
            config_json.refuse("layer_types", "use_sliding_window says that no layer has a window")
        return rope_fields(config_json)
    num_layers = config_json.positive_int("num_hidden_layers", maximum=10_000)
    first_window = config_json["max_window_layers"]
    if type(first_window) is not int or first_window < 0:
        config_json.refuse("max_window_layers", "it must be a whole number from 0")
    types = ["full_attention" if layer < first_window else "sliding_attention" for layer in range(num_layers)]
    return {**rope_fields(config_json), **window_fields(config_json, default_layer_types=types)}


def _qwen3(config_json: ConfigJSON) -> dict[str, Any]:
    bias = config_json.boolean("attention_bias")
    return {**_qwen(config_json), "attention_bias": bias, "out_bias": bias}


COMMON: dict[str, Any] = {
    "kind": "decoder",
    "prefix": "model.",
    "fields": FIELDS,
    "ignored_keys": IGNORED_KEYS,
    "renames": _renames,
    "tied_weights": tied_weights,
    "constants": (FREQUENCIES,),
    "ignored_weights": ("score.", "qa_outputs."),
}

LLAMA = Family(
    name="Llama",
    defaults={**DEFAULTS, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2},
    fixed=FIXED,
    extra_config=_llama,
    extra_keys=ROPE_KEYS | {"attention_bias", "mlp_bias"},
    **COMMON,
)

MISTRAL = Family(
    name="Mistral",
    defaults={
        **DEFAULTS,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    fixed=FIXED,
    extra_config=_mistral,
    extra_keys=ROPE_KEYS | {"sliding_window"},
    **COMMON,
)

QWEN_DEFAULTS = {**DEFAULTS, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
QWEN_KEYS = ROPE_KEYS | WINDOW_KEYS | {"max_window_layers", "use_sliding_window"}

QWEN2 = Family(
    name="Qwen2",
    defaults=QWEN_DEFAULTS,
    fixed={**FIXED, "attention_bias": True, "out_bias": False},
    extra_config=_qwen,
    extra_keys=QWEN_KEYS,
    supported={"use_mrope": (False,)},
    **COMMON,
)

QWEN3 = Family(
    name="Qwen3",
    defaults={**QWEN_DEFAULTS, "head_dim": 128, "attention_bias": False},
    fixed={**FIXED, "qk_norm": True},
    extra_config=_qwen3,
    extra_keys=QWEN_KEYS | {"attention_bias"},
    **COMMON,
)
