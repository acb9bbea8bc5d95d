"""The vision-encoder-decoders: a ViT encodes an image, and a GPT-2 with cross-attention writes text about it."""

from __future__ import annotations

from dataclasses import replace

from regard.pretrained.families.gpt2 import GPT2
from regard.pretrained.families.vit import VIT
from regard.pretrained.family import ConstantTensor, Family
from regard.pretrained.renames import Rename, linear, prefixed
from regard.transformer import Config

TRANSFORMER = "decoder.transformer."

CAPTIONER = replace(
    GPT2,
    name="GPT-2 that writes about images",
    supported={**GPT2.supported, "add_cross_attention": (True,), "is_decoder": (True, False)},
)
"""GPT-2 with cross-attention; ``is_decoder`` may have either value, as GPT-2 is always a decoder."""


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    decoder_table = [rename for rename in GPT2.renames(decoder) if rename.parameter != "lm_head.weight"]
    return [
        *prefixed(VIT.renames(config), "encoder.", "encoder."),
        *(linear("encoder.projection", "enc_to_dec_proj") if decoder.d_model != config.d_model else []),
        *prefixed(decoder_table, "decoder.", TRANSFORMER, "m"),
        *prefixed(_cross(decoder), "decoder.", TRANSFORMER, "m"),
        *([] if decoder.tie_word_embeddings else linear("decoder.lm_head", "decoder.lm_head", bias=False)),
    ]


def _tied_weights(config: Config) -> list[tuple[str, ...]]:
    tied = (config.decoder or config).tie_word_embeddings
    return [(TRANSFORMER + "wte.weight", "decoder.lm_head.weight")] if tied else []


def _cross(config: Config) -> list[Rename]:
    """The cross-attention of a layer: a projection of queries and one of keys and values, inputs before outputs."""
    attention, name = "blocks.{n}.cross_attention", "h.{n}.crossattention."
    rows = (config.d_model, 2 * config.d_model)
    return [
        *linear("blocks.{n}.cross_norm", "h.{n}.ln_cross_attn"),
        Rename(f"{attention}.qkv.weight", (name + "q_attn.weight", name + "c_attn.weight"), rows, layout="transposed"),
        Rename(f"{attention}.qkv.bias", (name + "q_attn.bias", name + "c_attn.bias"), rows),
        *linear(f"{attention}.out_proj", name + "c_proj", layout="transposed"),
    ]


def _mask_constants() -> list[ConstantTensor]:
    """Older files store the masks of both attentions."""
    return [
        replace(constant, name=TRANSFORMER + constant.name.replace(".attn.", attention))
        for constant in GPT2.constants
        for attention in (".attn.", ".crossattention.")
    ]


VISION = Family(
    name="vision-encoder-decoder",
    kind="encoder-decoder",
    fields={},
    submodels={"encoder": ("vit", VIT), "decoder": ("gpt2", CAPTIONER)},
    # The decoder's own config says whether its output is tied.
    ignored_keys=frozenset({"tie_word_embeddings"}),
    renames=_renames,
    tied_weights=_tied_weights,
    constants=_mask_constants(),
    ignored_weights=("encoder.pooler.",),
)
