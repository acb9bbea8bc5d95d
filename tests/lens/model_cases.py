"""Small random models of transformers, how to run them, and the maps that they give out themselves when eager."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from lens.watching import sharpen

BATCH, TOKENS, TARGETS = 3, 12, 7
"""Sizes of a batch: texts, tokens of the longest, tokens of the longest answer."""
LENGTHS = {"even": [12, 12, 12], "right": [12, 7, 3], "left": [12, 7, 3]}
"""Tokens that count in each text, by where its padding stands."""

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
WIDTHS: dict[str, Any] = {**SIZES, "vocab_size": 40, "max_position_embeddings": 64}
GROUPED: dict[str, Any] = {**WIDTHS, "num_key_value_heads": 2, "head_dim": 8}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOWERS: dict[str, Any] = {"vocab_size": 40, "d_model": 32, **SPECIAL} | {
    f"{half}_{name}": size
    for half in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))
}
IMAGE = {**SIZES, "image_size": 16, "patch_size": 4}
MARIAN = {"max_position_embeddings": 64, "decoder_start_token_id": 3, "forced_eos_token_id": 2}
WHISPER = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20, "decoder_start_token_id": 3}
T5 = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **SPECIAL}
MODERNBERT = {**WIDTHS, **SPECIAL, "num_hidden_layers": 3, "cls_token_id": 1, "sep_token_id": 2}
MODERNBERT |= {"local_attention": 6, "global_attn_every_n_layers": 3}
LATENT = {**WIDTHS, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
LATENT |= {"qk_rope_head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1}
LATENT |= {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
"""Multi-head latent attention: keys and values of two widths, made anew from the cache in each call."""
ALL_PADDINGS = ("even", "right", "left")


@dataclass(frozen=True)
class AttentionSpec:
    """One attention of a model."""

    path: str
    kind: str
    output: str
    """Where the eager model's output holds the maps of this stack."""
    layer: int
    rows: str = "source"
    """Whose tokens attend: ``source``, ``target``, or ``all`` where every row counts."""


def stack_attentions(template: str, output: str = "attentions", rows: str = "source", layers=2) -> list[AttentionSpec]:
    """The self-attentions of one stack, in order."""
    return [AttentionSpec(template.format(i), "self", output, i, rows) for i in range(layers)]


def decoder_attentions(self_attention: str, cross_attention: str) -> list[AttentionSpec]:
    """The attentions of a decoder that reads an encoder, in order."""
    kinds = (self_attention, "self", "decoder_attentions"), (cross_attention, "cross", "cross_attentions")
    return [AttentionSpec(path.format(i), kind, output, i, "target") for i in range(2) for path, kind, output in kinds]


def bart_attentions(rows: str = "source") -> list[AttentionSpec]:
    encoder = stack_attentions("encoder.layers.{}.self_attn", "encoder_attentions", rows)
    return encoder + decoder_attentions("decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn")


@dataclass(frozen=True)
class ModelCase:
    """The architecture and sizes of a model, what it reads, and where its attentions are."""

    architecture: str
    config: dict[str, Any]
    attentions: list[AttentionSpec]
    paddings: tuple[str, ...] = ("even", "right")
    input_kind: str = "text"
    """``text``, ``texts`` (a source and a target), ``sound``, ``image``, ``both`` (a text and an image)."""
    weight_scale: float = 0.3
    """How large its weights are drawn. T5 does not scale its scores down."""

    def build(self, head: str = "Model") -> nn.Module:
        """A model of this case, with a head of transformers such as ``ForCausalLM``."""
        config = getattr(transformers, f"{self.architecture}Config")(**self.config)
        torch.manual_seed(0)
        return sharpen(getattr(transformers, f"{self.architecture}{head}")(config), self.weight_scale)


LLAMA_ATTENTIONS = stack_attentions("layers.{}.self_attn")
MODEL_CASES: dict[str, ModelCase] = {
    "bert": ModelCase("Bert", WIDTHS, stack_attentions("encoder.layer.{}.attention.self")),
    "gpt2": ModelCase("GPT2", GPT2, stack_attentions("h.{}.attn"), ALL_PADDINGS),
    "llama": ModelCase("Llama", GROUPED, LLAMA_ATTENTIONS, ALL_PADDINGS),
    "mistral": ModelCase("Mistral", {**GROUPED, "sliding_window": 4}, LLAMA_ATTENTIONS, ALL_PADDINGS),
    "qwen3": ModelCase("Qwen3", GROUPED, LLAMA_ATTENTIONS, ("even", "left")),
    "t5": ModelCase(
        "T5",
        T5,
        stack_attentions("encoder.block.{}.layer.0.SelfAttention", "encoder_attentions")
        + decoder_attentions("decoder.block.{}.layer.0.SelfAttention", "decoder.block.{}.layer.1.EncDecAttention"),
        input_kind="texts",
        weight_scale=0.15,
    ),
    "bart": ModelCase("Bart", {**TOWERS, "max_position_embeddings": 64}, bart_attentions(), input_kind="texts"),
    "marian": ModelCase("Marian", {**TOWERS, **MARIAN}, bart_attentions(), input_kind="texts"),
    "whisper": ModelCase("Whisper", {**TOWERS, **WHISPER}, bart_attentions(rows="all"), ("even",), "sound"),
    "vit": ModelCase("ViT", IMAGE, stack_attentions("layers.{}.attention", rows="all"), ("even",), "image"),
    "clip": ModelCase(
        "CLIP",
        {"text_config": {**WIDTHS, **SPECIAL}, "vision_config": IMAGE, "projection_dim": 16},
        stack_attentions("vision_model.encoder.layers.{}.self_attn", "vision_model_output.attentions", "all")
        + stack_attentions("text_model.encoder.layers.{}.self_attn", "text_model_output.attentions"),
        input_kind="both",
    ),
    "modernbert": ModelCase("ModernBert", MODERNBERT, stack_attentions("layers.{}.attn", layers=3)),
}

CASES = [(name, padding) for name, case in MODEL_CASES.items() for padding in case.paddings]


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def load_model(name: str) -> nn.Module:
    """A model of that case, with the attention that transformers chooses by itself; to be left as it is."""
    model = MODEL_CASES[name].build()
    assert model.config._attn_implementation == "sdpa"
    return model


def token_mask(padding: str, tokens: int = TOKENS) -> Tensor:
    """Which tokens count: (batch, tokens), True for those."""
    lengths = torch.tensor(LENGTHS[padding])[:, None].clamp(max=tokens)
    at = torch.arange(tokens)
    return at >= tokens - lengths if padding == "left" else at < lengths


def make_inputs(name: str, padding: str, seed: int = 0) -> dict[str, Tensor]:
    """What such a model reads."""
    return inputs_of_kind(MODEL_CASES[name].input_kind, padding, seed)


def inputs_of_kind(kind: str, padding: str, seed: int = 0) -> dict[str, Tensor]:
    """What models with such an ``input_kind`` read."""
    generator = torch.Generator().manual_seed(seed)
    text = {"input_ids": torch.randint(5, 40, (BATCH, TOKENS), generator=generator)}
    target = {"decoder_input_ids": torch.randint(5, 40, (BATCH, TARGETS), generator=generator)}
    sound = {"input_features": torch.randn(BATCH, 8, 40, generator=generator)}
    image = {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=generator)}
    if padding != "even":
        text["attention_mask"] = token_mask(padding).long()
        target["decoder_attention_mask"] = token_mask(padding, TARGETS).long()
    return {"text": text, "texts": text | target, "sound": sound | target, "image": image, "both": text | image}[kind]


def eager_maps(name: str, model_inputs: dict[str, Tensor], model: nn.Module | None = None) -> dict[str, Tensor]:
    """The maps that the model itself gives out, by the paths of its attentions."""
    eager = copy.deepcopy(model if model is not None else load_model(name)).eval()
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        output = eager(**model_inputs, output_attentions=True)
    return {spec.path: attrgetter(spec.output)(output)[spec.layer] for spec in MODEL_CASES[name].attentions}


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def cached_eager_maps(name: str, padding: str) -> dict[str, Tensor]:
    """`eager_maps` of a case's own inputs, computed once."""
    return eager_maps(name, make_inputs(name, padding))


def counted_rows(spec: AttentionSpec, padding: str) -> Tensor | None:
    """The rows of a map that count, (batch, queries), or None for all of them."""
    return None if spec.rows == "all" else token_mask(padding, TARGETS if spec.rows == "target" else TOKENS)
