"""The GPT-2 family (Radford et al. 2019): how its checkpoints name what `regard.transformer.Decoder` has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.pretrained.config_json import Settings
from regard.pretrained.family import Constant, Family
from regard.pretrained.renames import Rename, linear
from regard.transformer import Config

__all__ = ["GPT2"]


def _more(settings: Settings) -> dict[str, Any]:
    inner = settings.get("n_inner")
    scaled = settings.get("scale_attn_weights")
    if not isinstance(scaled, bool):
        settings.refuse("scale_attn_weights", "it must be true or false")
    return {
        "d_ff": 4 * settings.whole("n_embd") if inner is None else settings.whole("n_inner"),
        "attention_scale": None if scaled else 1.0,
    }


def _renames(config: Config) -> list[Rename]:
    """GPT-2's layers are of a kind of their own, "Conv1D", which keeps inputs before outputs."""
    layer = "h.{n}."
    return [
        Rename("embeddings.token.weight", ("wte.weight",)),
        Rename("embeddings.position.weight", ("wpe.weight",)),
        *linear("blocks.{n}.attention_norm", layer + "ln_1"),
        *linear("blocks.{n}.attention.qkv", layer + "attn.c_attn", layout="transposed"),
        *linear("blocks.{n}.attention.out_proj", layer + "attn.c_proj", layout="transposed"),
        *linear("blocks.{n}.feed_forward_norm", layer + "ln_2"),
        *linear("blocks.{n}.feed_forward.up", layer + "mlp.c_fc", layout="transposed"),
        *linear("blocks.{n}.feed_forward.down", layer + "mlp.c_proj", layout="transposed"),
        *linear("norm", "ln_f"),
        *([] if config.tie_word_embeddings else linear("lm_head", "lm_head", bias=False)),
    ]


def _is_causal(mask: Tensor, config: Config) -> bool:
    square = mask.squeeze().float()
    return square.ndim == 2 and torch.equal(square, torch.ones_like(square).tril())


def _hides(score: Tensor, config: Config) -> bool:
    return score.numel() == 1 and score.item() <= -1e4


GPT2 = Family(
    name="GPT-2",
    kind="decoder",
    prefix="transformer.",
    fields={
        "vocab_size": "vocab_size",
        "n_embd": "d_model",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_positions",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_eps",
        "resid_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    defaults={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    always={
        "positions": "learned",
        "scale_embedding": False,
        "norm_position": "pre",
        "attention_bias": True,
        "out_bias": True,
    },
    more=_more,
    reads=frozenset({"n_inner", "scale_attn_weights"}),
    only={"scale_attn_by_inverse_layer_idx": (False,), "reorder_and_upcast_attn": (False,)},
    without_effect=frozenset(
        {
            "embd_pdrop",
            "n_ctx",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        }
    ),
    renames=_renames,
    one=lambda config: [("wte.weight", "lm_head.weight")] if config.tie_word_embeddings else [],
    constants=(
        Constant("h.{n}.attn.bias", _is_causal, "the causal mask"),
        Constant("h.{n}.attn.masked_bias", _hides, "a large negative number"),
    ),
    on_top=("score.", "classifier.", "multiple_choice_head."),
)
