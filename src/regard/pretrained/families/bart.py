"""The BART family (Lewis et al. 2020) of encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from regard.pretrained.family import Family
from regard.pretrained.renames import Rename, Weight, linear, packed_qkv
from regard.transformer import Config

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

DECODER_FIELDS = {
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

SUPPORTED: dict[str, tuple[object, ...]] = {
    "add_bias_logits": (False,),
    "add_final_layer_norm": (False,),
    "normalize_before": (False,),
    "tie_word_embeddings": (True,),
}

IGNORED_KEYS = frozenset(
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


def layers(config: Config, stack: str, letter: str) -> list[Rename]:
    """The blocks of the encoder or the decoder, also Marian's."""
    block, layer = f"{stack}.blocks.{{{letter}}}.", f"{stack}.layers.{{{letter}}}."
    table = []
    attentions = [("attention", "attention_norm", "self_attn")]
    if stack == "decoder":
        attentions.append(("cross_attention", "cross_norm", "encoder_attn"))
    for attention, norm, name in attentions:
        table += packed_qkv(config, block + attention, layer + name, ("q_proj", "k_proj", "v_proj"), bias=True)
        table += linear(f"{block}{attention}.out_proj", f"{layer}{name}.out_proj")
        table += linear(block + norm, f"{layer}{name}_layer_norm")
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


def infer_config(config: Config, tensors: Mapping[str, Weight]) -> Config:
    """Only a checkpoint with a head has a bias of the logits."""
    has_bias = "final_logits_bias" in tensors
    return replace(config, decoder=replace(config.decoder or config, lm_head_bias=has_bias))


BART = Family(
    name="BART",
    kind="encoder-decoder",
    prefix="model.",
    fields=FIELDS,
    decoder_fields=DECODER_FIELDS,
    defaults={
        **DEFAULTS,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    },
    fixed={
        "positions": "learned",
        "first_position": 2,
        "embedding_norm": True,
        "attention_bias": True,
        "out_bias": True,
    },
    supported={**SUPPORTED, "normalize_embedding": (True,), "static_position_embeddings": (False,)},
    ignored_keys=IGNORED_KEYS | {"force_bos_token_to_be_generated"},
    renames=_renames,
    tied_weights=lambda config: [
        ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    ],
    infer_config=infer_config,
    ignored_weights=("classification_head.", "qa_outputs."),
)
