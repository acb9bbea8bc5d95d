"""The BART family (Lewis et al. 2020): how its checkpoints name what `regard.transformer.EncoderDecoder` has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from regard.pretrained.family import Family
from regard.pretrained.renames import Rename, linear, packed
from regard.transformer import Config

__all__ = ["BART", "DECODER", "DEFAULTS", "FIELDS", "ONLY", "WITHOUT_EFFECT", "layers", "settle"]

FIELDS = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "encoder_layers": "num_layers",
    "encoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff",
    "max_position_embeddings": "max_positions",
    "activation_function": "activation",
    "scale_embedding": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}

DECODER = {
    "decoder_layers": "num_layers",
    "decoder_attention_heads": "num_heads",
    "decoder_ffn_dim": "d_ff",
}

DEFAULTS = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}

ONLY: dict[str, tuple[object, ...]] = {
    "add_bias_logits": (False,),
    "add_final_layer_norm": (False,),
    "normalize_before": (False,),
    "tie_word_embeddings": (True,),
}

WITHOUT_EFFECT = frozenset(
    {
        "activation_dropout",
        "decoder_layerdrop",
        "encoder_layerdrop",
        "extra_pos_embeddings",
        "init_std",
        "num_hidden_layers",
        "replacing_rate",
        "student_decoder_layers",
        "student_encoder_layers",
    }
)


def layers(config: Config, ours: str, letter: str) -> list[Rename]:
    """The blocks of the encoder or the decoder; Marian's are the same."""
    block, layer = f"{ours}.blocks.{{{letter}}}.", f"{ours}.layers.{{{letter}}}."
    table = []
    names = [("attention", "self_attn")] + ([("cross", "encoder_attn")] if ours == "decoder" else [])
    for mine, theirs in names:
        attention = f"{block}{'cross_attention' if mine == 'cross' else mine}"
        table += packed(config, attention, layer + theirs, ("q_proj", "k_proj", "v_proj"), bias=True)
        table += linear(f"{attention}.out_proj", f"{layer}{theirs}.out_proj")
        table += linear(f"{block}{mine}_norm", f"{layer}{theirs}_layer_norm")
    return [
        *table,
        *linear(block + "feed_forward.up", layer + "fc1"),
        *linear(block + "feed_forward.down", layer + "fc2"),
        *linear(block + "feed_forward_norm", layer + "final_layer_norm"),
    ]


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    table = [Rename("encoder.embeddings.token.weight", ("shared.weight",))]
    for stack in ("encoder", "decoder"):
        table.append(Rename(f"{stack}.embeddings.position.weight", (f"{stack}.embed_positions.weight",)))
        table += linear(f"{stack}.embeddings.norm", f"{stack}.layernorm_embedding")
    bias = [Rename("decoder.lm_head_bias", ("final_logits_bias",), layout="row")] if decoder.lm_head_bias else []
    return [*table, *layers(config, "encoder", "n"), *layers(decoder, "decoder", "m"), *bias]


def settle(config: Config, tensors: Mapping[str, Tensor]) -> Config:
    """A model without a head on top has no bias of the logits."""
    has_bias = "final_logits_bias" in tensors
    return replace(config, decoder=replace(config.decoder or config, lm_head_bias=has_bias))


BART = Family(
    name="BART",
    kind="encoder-decoder",
    prefix="model.",
    fields=FIELDS,
    decoder=DECODER,
    defaults={
        **DEFAULTS,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    },
    always={
        "positions": "learned",
        "first_position": 2,
        "embedding_norm": True,
        "attention_bias": True,
        "out_bias": True,
    },
    only={**ONLY, "normalize_embedding": (True,), "static_position_embeddings": (False,)},
    without_effect=WITHOUT_EFFECT | {"force_bos_token_to_be_generated"},
    renames=_renames,
    one=lambda config: [
        ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    ],
    settle=settle,
    on_top=("classification_head.", "qa_outputs."),
)
