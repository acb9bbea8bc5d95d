"""The Gemma 2 family (Gemma Team 2024): norms around each sub-layer, soft-caps, a window in every other layer."""

from __future__ import annotations

from typing import Any

from regard.attention.validation import MAX_FLOAT32
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.families import llama
from regard.pretrained.family import Family
from regard.pretrained.renames import Rename, linear
from regard.pretrained.rope_config import ROPE_KEYS, WINDOW_KEYS, rope_fields, window_fields
from regard.transformer import Config


def _extra_config(config_json: ConfigJSON) -> dict[str, Any]:
    num_layers = config_json.positive_int("num_hidden_layers", maximum=10_000)
    types = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(num_layers)]
    width, bias = config_json["query_pre_attn_scalar"], config_json["attention_bias"]
    if type(width) not in (int, float) or not 0 < width <= MAX_FLOAT32:
        config_json.refuse("query_pre_attn_scalar", "scores are multiplied by its power of -0.5, so it must be above 0")
    return {
        **rope_fields(config_json),
        **window_fields(config_json, default_layer_types=types),
        "attention_scale": float(width) ** -0.5,
        "attention_bias": bias,
        "out_bias": bias,
    }


def _renames(config: Config) -> list[Rename]:
    layer = "layers.{n}."
    return [
        Rename("embeddings.token.weight", ("embed_tokens.weight",)),
        *llama.attention(config),
        *linear("blocks.{n}.attention_norm", layer + "input_layernorm", bias=False),
        *linear("blocks.{n}.attention_post_norm", layer + "post_attention_layernorm", bias=False),
        Rename("blocks.{n}.feed_forward.up.weight", (f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight")),
        *linear("blocks.{n}.feed_forward.down", layer + "mlp.down_proj", bias=False),
        *linear("blocks.{n}.feed_forward_norm", layer + "pre_feedforward_layernorm", bias=False),
        *linear("blocks.{n}.feed_forward_post_norm", layer + "post_feedforward_layernorm", bias=False),
        *linear("norm", "norm", bias=False),
        *([] if config.tie_word_embeddings else linear("lm_head", "lm_head", bias=False)),
    ]


GEMMA2 = Family(
    name="Gemma 2",
    kind="decoder",
    prefix="model.",
    fields={
        **{key: name for key, name in llama.FIELDS.items() if key != "hidden_act"},
        "hidden_activation": "activation",
        "attn_logit_softcapping": "softcap",
        "final_logit_softcapping": "logit_softcap",
    },
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_dropout": 0.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    },
    fixed={
        "norm": "rms",
        "norm_plus_one": True,
        "norm_position": "both",
        "gated": True,
        "feed_forward_bias": False,
        "dropout": 0.0,
    },
    extra_config=_extra_config,
    extra_keys=ROPE_KEYS | WINDOW_KEYS | {"attention_bias", "query_pre_attn_scalar"},
    supported={"use_bidirectional_attention": (None, False)},
    # The reference ignores hidden_act for hidden_activation, and takes the windows from layer_types.
    ignored_keys=frozenset({"hidden_act", "sliding_window_pattern", "_sliding_window_pattern", "sliding_window_size"}),
    renames=_renames,
    tied_weights=llama.tied_weights,
    constants=(llama.FREQUENCIES,),
    ignored_weights=("score.",),
)
