"""The Llama family (Touvron et al. 2023), with Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Yang et al. 2024, 2025).

They differ in windows, in biases and in the norm of queries and keys; their weights have the same names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.positions.scaling import inverse_frequencies
from regard.pretrained.config_json import Settings
from regard.pretrained.family import Constant, Family
from regard.pretrained.renames import Rename, linear, packed
from regard.pretrained.rope_config import ROTARY, WINDOWS, rotary, windows
from regard.transformer import Config

__all__ = ["FIELDS", "FREQUENCIES", "LLAMA", "MISTRAL", "QWEN2", "QWEN3", "WITHOUT_EFFECT", "attention", "one"]

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

ALWAYS = {
    "scale_embedding": False,
    "norm": "rms",
    "norm_position": "pre",
    "gated": True,
    "feed_forward_bias": False,
    "dropout": 0.0,
}

WITHOUT_EFFECT = frozenset({"max_sequence_length", "pretraining_tp"})


def attention(config: Config) -> list[Rename]:
    """A layer's attention; Gemma's is the same."""
    theirs = "layers.{n}.self_attn"
    parts = ("q_proj", "k_proj", "v_proj")
    norms = ("q_norm", "k_norm") if config.qk_norm else ()
    return [
        *packed(config, "blocks.{n}.attention", theirs, parts, bias=config.attention_bias),
        *linear("blocks.{n}.attention.out_proj", theirs + ".o_proj", bias=config.out_bias),
        *(Rename(f"blocks.{{n}}.attention.{norm}.weight", (f"{theirs}.{norm}.weight",)) for norm in norms),
    ]


def one(config: Config) -> list[tuple[str, ...]]:
    """Token vectors and the output's weights, where they are tied."""
    return [("embed_tokens.weight", "lm_head.weight")] if config.tie_word_embeddings else []


def _renames(config: Config) -> list[Rename]:
    mlp = "layers.{n}.mlp."
    kinds = ("weight", "bias") if config.feed_forward_bias else ("weight",)
    return [
        Rename("embeddings.token.weight", ("embed_tokens.weight",)),
        *attention(config),
        *linear("blocks.{n}.attention_norm", "layers.{n}.input_layernorm", bias=False),
        *(
            Rename(f"blocks.{{n}}.feed_forward.up.{kind}", (f"{mlp}gate_proj.{kind}", f"{mlp}up_proj.{kind}"))
            for kind in kinds
        ),
        *linear("blocks.{n}.feed_forward.down", mlp + "down_proj", bias=config.feed_forward_bias),
        *linear("blocks.{n}.feed_forward_norm", "layers.{n}.post_attention_layernorm", bias=False),
        *linear("norm", "norm", bias=False),
        *([] if config.tie_word_embeddings else linear("lm_head", "lm_head", bias=False)),
    ]


def _are_theta(frequencies: Tensor, config: Config) -> bool:
    expected = inverse_frequencies(config.rotary_base, config.head_dim, torch.zeros(1))
    return frequencies.shape == expected.shape and torch.allclose(frequencies.float(), expected, rtol=1e-2)


FREQUENCIES = Constant("layers.{n}.self_attn.rotary_emb.inv_freq", _are_theta, "base^(-2i / d)")
"""Older files store the rotary frequencies, some of them in half precision."""


def _llama(settings: Settings) -> dict[str, Any]:
    bias = _flag(settings, "attention_bias")
    return {
        **rotary(settings),
        "attention_bias": bias,
        "out_bias": bias,
        "feed_forward_bias": _flag(settings, "mlp_bias"),
    }


def _mistral(settings: Settings) -> dict[str, Any]:
    return {**rotary(settings), **windows(settings)}


def _qwen(settings: Settings) -> dict[str, Any]:
    """Layers from ``max_window_layers`` on have the window, if any have (``use_sliding_window``)."""
    if not _flag(settings, "use_sliding_window"):
        if "sliding_attention" in (settings.get("layer_types") or []):
            settings.refuse("layer_types", "use_sliding_window says that no layer has a window")
        return rotary(settings)
    layers = settings.whole("num_hidden_layers", most=10_000)
    full = settings["max_window_layers"]
    if type(full) is not int or full < 0:
        settings.refuse("max_window_layers", "it must be a whole number from 0")
    types = ["full_attention" if layer < full else "sliding_attention" for layer in range(layers)]
    return {**rotary(settings), **windows(settings, otherwise=types)}


def _qwen3(settings: Settings) -> dict[str, Any]:
    bias = _flag(settings, "attention_bias")
    return {**_qwen(settings), "attention_bias": bias, "out_bias": bias}


def _flag(settings: Settings, name: str) -> bool:
    value = settings[name]
    if not isinstance(value, bool):
        settings.refuse(name, "it must be true or false")
    return bool(value)


COMMON: dict[str, Any] = {
    "kind": "decoder",
    "prefix": "model.",
    "fields": FIELDS,
    "without_effect": WITHOUT_EFFECT,
    "renames": _renames,
    "one": one,
    "constants": (FREQUENCIES,),
    "on_top": ("score.", "qa_outputs."),
}

LLAMA = Family(
    name="Llama",
    defaults={**DEFAULTS, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2},
    always=ALWAYS,
    more=_llama,
    reads=ROTARY | {"attention_bias", "mlp_bias"},
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
    always=ALWAYS,
    more=_mistral,
    reads=ROTARY | {"sliding_window"},
    **COMMON,
)

QWEN = {**DEFAULTS, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
QWEN_READS = ROTARY | WINDOWS | {"max_window_layers", "use_sliding_window"}

QWEN2 = Family(
    name="Qwen2",
    defaults=QWEN,
    always={**ALWAYS, "attention_bias": True, "out_bias": False},
    more=_qwen,
    reads=QWEN_READS,
    only={"use_mrope": (False,)},
    **COMMON,
)

QWEN3 = Family(
    name="Qwen3",
    defaults={**QWEN, "head_dim": 128, "attention_bias": False},
    always={**ALWAYS, "qk_norm": True},
    more=_qwen3,
    reads=QWEN_READS | {"attention_bias"},
    **COMMON,
)
