"""Tiny random models of many types of transformers, made from the default configuration of each type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto

import regard.integrations.transformers  # noqa: F401  # registers "regard"
from regard.attention.hooks import register_hook

TOKENS, TARGETS, VOCABULARY = 12, 7, 64
LENGTHS = (12, 7, 10)
"""Tokens that count in each text of a batch."""

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("swa_head_dim", "kv_channels", "hidden_size_per_layer_input", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(
        ("intermediate_size", "intermediate_size_mlp", "d_ff", "ffn_dim", "n_inner", "ffn_hidden_size"), 40
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 40),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "projection_dim"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "index_head_dim"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 20),
    **dict.fromkeys(("num_experts_per_tok", "index_n_heads", "mlp_ratio"), 2),
    # Short enough for every kind of mask to block something within the texts.
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 4),
    "local_attention": 6,
    "index_topk": 5,
    # Multi-head latent attention: values of another width than keys.
    "v_head_dim": 12,
    "qk_head_dim": 16,
    "image_size": 16,
    "patch_size": 4,
    "num_mel_bins": 8,
    "num_kv_shared_layers": 0,
}
"""Sizes by the names that configurations of transformers have for them."""

SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

HEADS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "texts": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "sound": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
"""For each kind of model, the class of a type."""


@dataclass(frozen=True)
class TinyModel:
    """A type of model."""

    model_type: str
    kind: str
    """``causal`` (a decoder), ``masked`` (an encoder), ``texts`` (an encoder-decoder), ``sound``, ``image``."""
    mask: str = ""
    """What its attention has beside the usual."""
    config: dict[str, Any] = field(default_factory=dict)
    """Settings beside `SIZES`."""

    def build(self) -> nn.Module:
        """A model with random weights, on the eager code of transformers."""
        config = tiny_config(transformers.CONFIG_MAPPING[self.model_type], **self.config)
        name = HEADS[self.kind][self.model_type]
        torch.manual_seed(0)
        cls = getattr(transformers, name if isinstance(name, str) else name[0])
        model = cls._from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.2)
        return model

    def inputs(self, padding: str = "") -> dict[str, Tensor]:
        """A batch; ``padding`` is ``left`` or ``right``, or empty for texts of one length."""
        generator = torch.Generator().manual_seed(1)
        if self.kind == "image":
            return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
        if self.kind == "sound":
            inputs = {"input_features": torch.randn(3, 8, 40, generator=generator)}
        else:
            inputs = {"input_ids": torch.randint(3, VOCABULARY, (3, TOKENS), generator=generator)}
            if padding:
                inputs["attention_mask"] = real_tokens(padding).long()
        if self.kind in ("texts", "sound"):
            inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (3, TARGETS), generator=generator)
        return inputs


def real_tokens(padding: str) -> Tensor:
    """Which tokens count: (batch, tokens)."""
    lengths, at = torch.tensor(LENGTHS)[:, None], torch.arange(TOKENS)
    return at >= TOKENS - lengths if padding == "left" else at < lengths


def tiny_config(cls: Any, **settings: Any) -> Any:
    """The configuration of a tiny model: the defaults of its type with `SIZES` and these settings."""
    default = cls()
    sizes = {name: size for name, size in SIZES.items() if getattr(default, name, None) is not None}
    layer_types = getattr(default, "layer_types", None)
    if layer_types:  # a layer of each type
        kinds = list(dict.fromkeys(layer_types))
        sizes["layer_types"] = kinds * 2 if len(kinds) == 1 else kinds
        sizes["num_hidden_layers"] = len(sizes["layer_types"])
    if getattr(default, "mlp_layer_types", None):
        sizes["mlp_layer_types"] = list(default.mlp_layer_types)[: sizes["num_hidden_layers"]]
    if getattr(default, "num_attention_heads", None) == getattr(default, "num_key_value_heads", 0):
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    for name in ("text_config", "vision_config"):
        if getattr(default, name, None) is not None:
            sizes[name] = tiny_config(type(getattr(default, name))).to_dict()
    return cls(**{**sizes, **SPECIAL_TOKENS, **settings})


def logits(model: nn.Module, implementation: str, inputs: dict[str, Tensor]) -> Tensor:
    """What the model returns on that implementation of attention."""
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**inputs).logits


@dataclass(frozen=True)
class Comparison:
    """A model on regard against its own eager code."""

    largest_difference: float
    """Of the logits of tokens that count, over the paddings."""
    num_calls: int
    """The calls of `regard.attend`; 0 for a model that ignores the implementation."""


def compare(case: TinyModel) -> Comparison:
    """The logits of a model on regard and on its eager code, without padding and with padding on either side."""
    model, differences, num_calls = case.build(), [], 0

    def count(*_: Any, **__: Any) -> None:
        nonlocal num_calls
        num_calls += 1

    has_text_rows = case.kind in ("causal", "masked")
    for padding in ("", "left", "right") if has_text_rows else ("", "right"):
        inputs = case.inputs(padding)
        expected = logits(model, "eager", inputs)
        with register_hook(count):
            found = logits(model, "regard", inputs)
        if padding and has_text_rows:
            expected, found = expected[real_tokens(padding)], found[real_tokens(padding)]
        differences.append(float((expected - found).abs().max()))
    return Comparison(max(differences), num_calls)


def of_type(model_type: str) -> TinyModel:
    """The case of a type."""
    return next(case for case in CASES if case.model_type == model_type)


SLIDING = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
WINDOWS, CHUNKS, MIXED = "window", "chunks", "windows and full"
CASES = [
    *(TinyModel(name, "causal", WINDOWS) for name in ("mistral", "mixtral", "starcoder2", "phi3", "ministral3")),
    *(TinyModel(name, "causal", MIXED) for name in ("gemma3_text", "cohere2", "olmo3", "exaone4", "smollm3", "afmoe")),
    *(TinyModel(name, "causal", MIXED) for name in ("cwm", "mellum", "gemma3n_text", "modernbert-decoder")),
    TinyModel("qwen2", "causal", MIXED, SLIDING),
    TinyModel("qwen3", "causal", MIXED, SLIDING),
    TinyModel("gemma2", "causal", f"{MIXED}, soft-cap"),
    TinyModel("vaultgemma", "causal", f"{MIXED}, soft-cap"),
    TinyModel("gpt_oss", "causal", f"{MIXED}, sinks"),
    TinyModel("granite_swa", "causal", f"{MIXED}, sinks"),
    TinyModel("mimo_v2_flash", "causal", f"{MIXED}, sinks"),
    TinyModel("llama4_text", "causal", f"{CHUNKS} and full"),
    *(TinyModel(name, "causal", "MLA") for name in ("deepseek_v3", "minicpm3", "glm4_moe_lite", "longcat_flash")),
    *(TinyModel(name, "causal", "MLA, selected keys") for name in ("deepseek_v32", "glm_moe_dsa")),
    *(TinyModel(name, "causal") for name in ("llama", "gpt2", "gpt_neox", "opt", "phi", "olmo2", "gemma", "glm4")),
    *(TinyModel(name, "causal") for name in ("granite", "cohere", "stablelm", "biogpt", "gpt_bigcode", "qwen3_moe")),
    *(TinyModel(name, "causal") for name in ("nanochat", "helium", "diffllama", "apertus", "seed_oss", "bitnet")),
    TinyModel("doge", "causal", "a mask with numbers"),
    TinyModel("modernbert", "masked", f"{MIXED}, two-sided"),
    *(TinyModel(name, "masked") for name in ("bert", "roberta", "electra", "distilbert", "albert", "camembert")),
    *(TinyModel(name, "masked") for name in ("eurobert", "nomic_bert", "gte", "esmc")),
    *(TinyModel(name, "texts", "cross-attention") for name in ("bart", "marian", "mbart", "pegasus", "m2m_100")),
    *(TinyModel(name, "texts", "cross-attention, position bias") for name in ("t5", "mt5", "switch_transformers")),
    TinyModel("whisper", "sound", "cross-attention"),
    *(TinyModel(name, "image", "image") for name in ("vit", "siglip", "clip", "deit", "dinov2", "beit", "ijepa")),
]
