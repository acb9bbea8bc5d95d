"""The GPT-2 family (Radford et al. 2019) of decoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.family import ConstantTensor, Family
from regard.pretrained.renames import Rename, linear
from regard.transformer import Config


def _extra_config(config_json: ConfigJSON) -> dict[str, Any]:
    has_inner = config_json.get("n_inner") is not None
    return {
        "d_ff": config_json.positive_int("n_inner") if has_inner else 4 * config_json.positive_int("n_embd"),
        "attention_scale": None if config_json.boolean("scale_attn_weights") else 1.0,
        "scale_by_inverse_layer": config_json.boolean("scale_attn_by_inverse_layer_idx"),
    }


def _renames(config: Config) -> list[Rename]:
    """GPT-2 stores its linear layers as "Conv1D", with inputs before outputs."""
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


def _is_mask_value(score: Tensor, config: Config) -> bool:
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
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    fixed={
        "positions": "learned",
        "scale_embedding": False,
        "norm_position": "pre",
        "attention_bias": True,
        "out_bias": True,
    },
    extra_config=_extra_config,
    extra_keys=frozenset({"n_inner", "scale_attn_by_inverse_layer_idx", "scale_attn_weights"}),
    ignored_keys=frozenset(
        {
            "embd_pdrop",
            "n_ctx",
            "reorder_and_upcast_attn",  # scores in float32, which they are here in any case
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        }
    ),
    renames=_renames,
    tied_weights=lambda config: [("wte.weight", "lm_head.weight")] if config.tie_word_embeddings else [],
    constants=(
        ConstantTensor("h.{n}.attn.bias", _is_causal, "the causal mask"),
        ConstantTensor("h.{n}.attn.masked_bias", _is_mask_value, "a large negative number"),
    ),
    ignored_weights=("score.", "classifier.", "multiple_choice_head."),
)
