"""The T5 family (Raffel et al. 2020), versions 1.0 and 1.1: RMSNorm before each sub-layer, a bias by position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.family import ACTIVATIONS, Family
from regard.pretrained.renames import Rename, Weight, linear, packed_qkv, values_of
from regard.transformer import Config


def _extra_config(config_json: ConfigJSON) -> dict[str, Any]:
    projection = config_json["feed_forward_proj"]
    gated, _, activation = str(projection).rpartition("-")
    if projection == "gated-gelu":
        activation = "gelu_new"  # as in the reference
    if gated not in ("", "gated") or activation not in ACTIVATIONS:
        config_json.refuse(
            "feed_forward_proj", f"supported are {', '.join(ACTIVATIONS)}, and gated- before any of them"
        )
    for name, derived in (("dense_act_fn", activation), ("is_gated_act", bool(gated))):
        if config_json.get(name) not in (None, derived):
            config_json.refuse(name, f"feed_forward_proj says {derived!r}")
    layers_key = "num_layers" if config_json.get("num_decoder_layers") is None else "num_decoder_layers"
    # Version 1.0 scales its outputs, 1.1 does not; transformers 4 says so by tie_word_embeddings, 5 by its own key.
    scaled = config_json.get("scale_decoder_outputs")
    if scaled is None:
        scaled = config_json.get("tie_word_embeddings") is not False
    return {
        "activation": ACTIVATIONS[activation],
        "gated": bool(gated),
        "decoder.num_layers": config_json.positive_int(layers_key),
        "decoder.logit_scale": config_json.positive_int("d_model") ** -0.5 if scaled else None,
    }


def _stack(config: Config, stack: str, letter: str) -> list[Rename]:
    block, layer = f"{stack}.blocks.{{{letter}}}.", f"{stack}.block.{{{letter}}}.layer."
    cross = stack == "decoder"
    attentions = [("attention", "attention_norm", "0", "SelfAttention")]
    if cross:
        attentions.append(("cross_attention", "cross_norm", "1", "EncDecAttention"))
    table = []
    for attention, norm, index, name in attentions:
        table += packed_qkv(config, block + attention, f"{layer}{index}.{name}", ("q", "k", "v"))
        table += linear(f"{block}{attention}.out_proj", f"{layer}{index}.{name}.o", bias=False)
        table += linear(block + norm, f"{layer}{index}.layer_norm", bias=False)
    last = f"{layer}{'2' if cross else '1'}."
    up = ("wi_0", "wi_1") if config.gated else ("wi",)
    return [
        Rename(f"{stack}.bias.weight", (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)),
        *table,
        Rename(block + "feed_forward.up.weight", tuple(f"{last}DenseReluDense.{part}.weight" for part in up)),
        *linear(block + "feed_forward.down", last + "DenseReluDense.wo", bias=False),
        *linear(block + "feed_forward_norm", last + "layer_norm", bias=False),
        *linear(f"{stack}.norm", f"{stack}.final_layer_norm", bias=False),
    ]


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    return [
        Rename("encoder.embeddings.token.weight", ("shared.weight",)),
        *_stack(config, "encoder", "n"),
        *_stack(decoder, "decoder", "m"),
        *([] if decoder.tie_word_embeddings else linear("decoder.lm_head", "lm_head", bias=False)),
    ]


def _tied_weights(config: Config) -> list[tuple[str, ...]]:
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return [(*names, "lm_head.weight") if (config.decoder or config).tie_word_embeddings else names]


def _infer_config(config: Config, tensors: Mapping[str, Weight]) -> Config:
    """Whether the output projection is tied: no key says it, so the file's weights are compared."""
    head = tensors.get("lm_head.weight")
    tables = (tensors.get(f"{name}.weight") for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"))
    token = next((table for table in tables if table is not None), None)
    tied = head is None or token is None
    if head is not None and token is not None:
        tied = head.shape == token.shape and torch.equal(values_of(head), values_of(token))
    return replace(config, decoder=replace(config.decoder or config, tie_word_embeddings=tied))


T5 = Family(
    name="T5",
    kind="encoder-decoder",
    prefix="transformer.",
    fields={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "d_kv": "d_key",
        "d_ff": "d_ff",
        "num_layers": "num_layers",
        "num_heads": "num_heads",
        "relative_attention_num_buckets": "t5_buckets",
        "relative_attention_max_distance": "t5_max_distance",
        "layer_norm_epsilon": "norm_eps",
        "dropout_rate": "dropout",
    },
    defaults={
        "feed_forward_proj": "relu",
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
    fixed={
        "positions": "t5",
        "scale_embedding": False,
        "norm": "rms",
        "norm_position": "pre",
        "attention_scale": 1.0,
        "feed_forward_bias": False,
    },
    extra_config=_extra_config,
    extra_keys=frozenset(
        {
            "dense_act_fn",
            "feed_forward_proj",
            "is_gated_act",
            "num_decoder_layers",
            "scale_decoder_outputs",
            "tie_word_embeddings",
        }
    ),
    ignored_keys=frozenset({"initializer_factor", "n_positions"}),
    renames=_renames,
    tied_weights=_tied_weights,
    infer_config=_infer_config,
    # The first files hold a position bias of the cross-attention, which the reference never reads.
    ignored_weights=(
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",
        "classification_head.",
        "qa_outputs.",
    ),
)
