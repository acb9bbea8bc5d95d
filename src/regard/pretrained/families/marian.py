"""The Marian family (Junczys-Dowmunt et al. 2018), the translation models of OPUS-MT: nearly the paper's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import sinusoidal
from regard.pretrained.config_json import Settings
from regard.pretrained.families import bart
from regard.pretrained.family import Constant, Family
from regard.pretrained.renames import Rename
from regard.transformer import Config

__all__ = ["MARIAN"]


def _more(settings: Settings) -> dict[str, Any]:
    shared = settings["share_encoder_decoder_embeddings"]
    if not isinstance(shared, bool):
        settings.refuse("share_encoder_decoder_embeddings", "it must be true or false")
    theirs = settings.get("decoder_vocab_size")
    if theirs is None or shared:
        return {"shared_embedding": shared}
    return {"shared_embedding": shared, "decoder.vocab_size": settings.whole("decoder_vocab_size")}


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    tokens = ["encoder"] if config.shared_embedding else ["encoder", "decoder"]
    names = ["shared.weight"] if config.shared_embedding else [f"{stack}.embed_tokens.weight" for stack in tokens]
    bias = [Rename("decoder.lm_head_bias", ("final_logits_bias",), layout="row")] if decoder.lm_head_bias else []
    return [
        *(Rename(f"{stack}.embeddings.token.weight", (name,)) for stack, name in zip(tokens, names, strict=True)),
        *bart.layers(config, "encoder", "n"),
        *bart.layers(decoder, "decoder", "m"),
        *bias,
    ]


def _one(config: Config) -> list[tuple[str, ...]]:
    if config.shared_embedding:
        return [("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")]
    return [("decoder.embed_tokens.weight", "lm_head.weight")]


def _are_sinusoidal(table: Tensor, config: Config) -> bool:
    expected = sinusoidal(config.max_positions or 0, config.d_model, halves=True, dtype=torch.float32)
    return table.shape == expected.shape and torch.allclose(table.float(), expected, atol=1e-2, rtol=0)


MARIAN = Family(
    name="Marian",
    kind="encoder-decoder",
    prefix="model.",
    fields=bart.FIELDS,
    decoder=bart.DECODER,
    defaults={
        **bart.DEFAULTS,
        "share_encoder_decoder_embeddings": True,
        "eos_token_id": 0,
        "pad_token_id": 58100,
        "decoder_start_token_id": 58100,
        "forced_eos_token_id": 0,
    },
    always={"positions": "sinusoidal", "sinusoidal_halves": True, "attention_bias": True, "out_bias": True},
    more=_more,
    reads=frozenset({"decoder_vocab_size", "share_encoder_decoder_embeddings"}),
    only={**bart.ONLY, "normalize_embedding": (False,), "static_position_embeddings": (True,)},
    without_effect=bart.WITHOUT_EFFECT,
    renames=_renames,
    one=_one,
    settle=bart.settle,
    constants=tuple(
        Constant(f"{stack}.embed_positions.weight", _are_sinusoidal, "the sines and cosines of the positions")
        for stack in ("encoder", "decoder")
    ),
)
