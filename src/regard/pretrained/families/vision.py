"""Images in, text out: a ViT whose output a GPT-2 with cross-attention reads ("vision-encoder-decoder")."""

from __future__ import annotations

from dataclasses import replace

from regard.pretrained.families.gpt2 import GPT2
from regard.pretrained.families.vit import VIT
from regard.pretrained.family import Constant, Family
from regard.pretrained.renames import Rename, inside, linear
from regard.transformer import Config

__all__ = ["VISION"]

INSIDE = "decoder.transformer."

WRITER = replace(
    GPT2,
    name="GPT-2 that writes about images",
    only={**GPT2.only, "add_cross_attention": (True,), "is_decoder": (True, False)},
)
"""``is_decoder`` changes nothing in GPT-2, which is nothing else."""


def _renames(config: Config) -> list[Rename]:
    decoder = config.decoder or config
    within = [rename for rename in GPT2.renames(decoder) if rename.ours != "lm_head.weight"]
    return [
        *inside(VIT.renames(config), "encoder.", "encoder."),
        *(linear("encoder.projection", "enc_to_dec_proj") if decoder.d_model != config.d_model else []),
        *inside(within, "decoder.", INSIDE, "m"),
        *inside(_cross(decoder), "decoder.", INSIDE, "m"),
        *([] if decoder.tie_word_embeddings else linear("decoder.lm_head", "decoder.lm_head", bias=False)),
    ]


def _one(config: Config) -> list[tuple[str, ...]]:
    tied = (config.decoder or config).tie_word_embeddings
    return [(INSIDE + "wte.weight", "decoder.lm_head.weight")] if tied else []


def _cross(config: Config) -> list[Rename]:
    """The cross-attention of a layer: queries apart, keys and values in one, inputs before outputs."""
    ours, theirs = "blocks.{n}.cross_attention", "h.{n}.crossattention."
    rows = (config.d_model, 2 * config.d_model)
    return [
        *linear("blocks.{n}.cross_norm", "h.{n}.ln_cross_attn"),
        Rename(f"{ours}.qkv.weight", (theirs + "q_attn.weight", theirs + "c_attn.weight"), rows, layout="transposed"),
        Rename(f"{ours}.qkv.bias", (theirs + "q_attn.bias", theirs + "c_attn.bias"), rows),
        *linear(f"{ours}.out_proj", theirs + "c_proj", layout="transposed"),
    ]


def _constants() -> list[Constant]:
    """Older files store the masks of both attentions."""
    return [
        replace(constant, name=INSIDE + constant.name.replace(".attn.", attention))
        for constant in GPT2.constants
        for attention in (".attn.", ".crossattention.")
    ]


VISION = Family(
    name="vision-encoder-decoder",
    kind="encoder-decoder",
    fields={},
    parts={"encoder": ("vit", VIT), "decoder": ("gpt2", WRITER)},
    # Whether the decoder's output is tied, its own config says.
    without_effect=frozenset({"tie_word_embeddings"}),
    renames=_renames,
    one=_one,
    constants=_constants(),
    on_top=("encoder.pooler.",),
)
