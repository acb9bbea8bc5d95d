"""The T5 family (Raffel et al. 2020), versions 1.0 and 1.1: RMSNorm before each sub-layer, a bias by position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.pretrained.config_json import Settings
from regard.pretrained.family import ACTIVATIONS, Family
from regard.pretrained.renames import Rename, linear, packed
from regard.transformer import Config

__all__ = ["T5"]


def _more(settings: Settings) -> dict[str, Any]:
    spoken = settings["feed_forward_proj"]
    gated, _, activation = str(spoken).rpartition("-")
    if spoken == "gated-gelu":
        activation = "gelu_new"  # so the reference, which had it that way first
    if gated not in ("", "gated") or activation not in ACTIVATIONS:
        settings.refuse("feed_forward_proj", f"supported are {', '.join(ACTIVATIONS)}, and gated- before any of them")
    for name, derived in (("dense_act_fn", activation), ("is_gated_act", bool(gated))):
        if settings.get(name) not in (None, derived):
            settings.refuse(name, f"feed_forward_proj says {derived!r}")
    decoder = settings.get("num_decoder_layers")
    # Version 1.0 scales its outputs, 1.1 does not; transformers 4 says so by tie_word_embeddings, 5 by its own setting.
    scaled = settings.get("scale_decoder_outputs")
    if scaled is None:
        scaled = settings.get("tie_word_embeddings") is not False
    return {
        "activation": ACTIVATIONS[activation],
        "gated": bool(gated),
        "decoder.num_layers": settings["num_layers"] if decoder is None else settings.whole("num_decoder_layers"),
        "decoder.logit_scale": settings.whole("d_model") ** -0.5 if scaled else None,
    }


def _stack(config: Config, ours: str, letter: str) -> list[Rename]:
    block, layer = f"{ours}.blocks.{{{letter}}}.", f"{ours}.block.{{{letter}}}.layer."
    cross = ours == "decoder"
    attentions = [("attention", "attention_norm", "0", "SelfAttention")]
    if cross:
        attentions.append(("cross_attention", "cross_norm", "1", "EncDecAttention"))
    table = []
    for mine, norm, number, theirs in attentions:
        table += packed(config, block + mine, f"{layer}{number}.{theirs}", ("q", "k", "v"))
        table += linear(f"{block}{mine}.out_proj", f"{layer}{number}.{theirs}.o", bias=False)
        table += linear(block + norm, f"{layer}{number}.layer_norm", bias=False)
    last = f"{layer}{'2' if cross else '1'}."
    up = ("wi_0", "wi_1") if config.gated else ("wi",)
    return [
        Rename(f"{ours}.bias.weight", (f"{ours}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)),
        *table,
        Rename(block + "feed_forward.up.weight", tuple(f"{last}DenseReluDense.{part}.weight" for part in up)),
        *linear(block + "feed_forward.down", last + "DenseReluDense.wo", bias=False),
        *linear(block + "feed_forward_norm", last + "layer_norm", bias=False),
        *linear(f"{ours}.norm", f"{ours}.final_layer_norm", bias=False),
    ]


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    return [
        Rename("encoder.embeddings.token.weight", ("shared.weight",)),
        *_stack(config, "encoder", "n"),
        *_stack(decoder, "decoder", "m"),
        *([] if decoder.tie_word_embeddings else linear("decoder.lm_head", "lm_head", bias=False)),
    ]


def _one(config: Config) -> list[tuple[str, ...]]:
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return [(*names, "lm_head.weight") if (config.decoder or config).tie_word_embeddings else names]


def _settle(config: Config, tensors: Mapping[str, Tensor]) -> Config:
    """Whether the output has weights of its own: no setting says it, the file has them or has not."""
    head = tensors.get("lm_head.weight")
    tables = (tensors.get(f"{name}.weight") for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"))
    token = next((table for table in tables if table is not None), None)
    own = head is not None and token is not None and (head.shape != token.shape or not torch.equal(head, token))
    return replace(config, decoder=replace(config.decoder or config, tie_word_embeddings=not own))


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
    always={
        "positions": "t5",
        "scale_embedding": False,
        "norm": "rms",
        "norm_position": "pre",
        "attention_scale": 1.0,
        "feed_forward_bias": False,
    },
    more=_more,
    reads=frozenset(
        {
            "dense_act_fn",
            "feed_forward_proj",
            "is_gated_act",
            "num_decoder_layers",
            "scale_decoder_outputs",
            "tie_word_embeddings",
        }
    ),
    without_effect=frozenset({"initializer_factor", "n_positions"}),
    renames=_renames,
    one=_one,
    settle=_settle,
    # The first files hold positions of the cross-attention, which the reference never reads.
    on_top=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.", "classification_head.", "qa_outputs."),
)
