"""The Marian family (Junczys-Dowmunt et al. 2018), the translation models of OPUS-MT: nearly the paper's model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import sinusoidal
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.families import bart
from regard.pretrained.family import ConstantTensor, Family
from regard.pretrained.renames import Rename
from regard.transformer import Config


def _extra_config(config_json: ConfigJSON) -> dict[str, Any]:
    shared = config_json.boolean("share_encoder_decoder_embeddings")
    if config_json.get("decoder_vocab_size") is None or shared:
        return {"shared_embedding": shared}
    return {"shared_embedding": shared, "decoder.vocab_size": config_json.positive_int("decoder_vocab_size")}


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    stacks = ["encoder"] if config.shared_embedding else ["encoder", "decoder"]
    names = ["shared.weight"] if config.shared_embedding else [f"{stack}.embed_tokens.weight" for stack in stacks]
    bias = [Rename("decoder.lm_head_bias", ("final_logits_bias",), layout="row")] if decoder.lm_head_bias else []
    return [
        *(Rename(f"{stack}.embeddings.token.weight", (name,)) for stack, name in zip(stacks, names, strict=True)),
        *bart.layers(config, "encoder", "n"),
        *bart.layers(decoder, "decoder", "m"),
        *bias,
    ]


def _tied_weights(config: Config) -> list[tuple[str, ...]]:
    if config.shared_embedding:
        return [("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")]
    return [("decoder.embed_tokens.weight", "lm_head.weight")]


def _is_sinusoidal(table: Tensor, config: Config) -> bool:
    expected = sinusoidal(config.max_positions or 0, config.d_model, halves=True, dtype=torch.float32)
    return table.shape == expected.shape and torch.allclose(table.float(), expected, atol=1e-2, rtol=0)


MARIAN = Family(
    name="Marian",
    kind="encoder-decoder",
    prefix="model.",
    fields=bart.FIELDS,
    decoder_fields=bart.DECODER_FIELDS,
    defaults={
        **bart.DEFAULTS,
        "share_encoder_decoder_embeddings": True,
        "eos_token_id": 0,
        "pad_token_id": 58100,
        "decoder_start_token_id": 58100,
        "forced_eos_token_id": 0,
    },
    fixed={"positions": "sinusoidal", "sinusoidal_halves": True, "attention_bias": True, "out_bias": True},
    extra_config=_extra_config,
    extra_keys=frozenset({"decoder_vocab_size", "share_encoder_decoder_embeddings"}),
    supported={**bart.SUPPORTED, "normalize_embedding": (False,), "static_position_embeddings": (True,)},
    ignored_keys=bart.IGNORED_KEYS,
    renames=_renames,
    tied_weights=_tied_weights,
    infer_config=bart.infer_config,
    constants=tuple(
        ConstantTensor(f"{stack}.embed_positions.weight", _is_sinusoidal, "the sines and cosines of the positions")
        for stack in ("encoder", "decoder")
    ),
)
