"""Small random models of transformers of many architectures, each beside itself with attention written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from lens.interventions.by_hand import ByHand, compute
from lens.interventions.edits import Site, first_sites
from lens.interventions.layers import LAYERS, LayerCase
from lens.model_cases import GPT2, GROUPED, IMAGE, LATENT, MODEL_CASES, WIDTHS, ModelCase, inputs_of_kind

EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
GPTJ = {**GPT2, "rotary_dim": 4}
OPT = {**WIDTHS, "ffn_dim": 40, "word_embed_proj_dim": 32}
ROBERTA = {**WIDTHS, "max_position_embeddings": 66, "pad_token_id": 1}
DISTILBERT = {"vocab_size": 40, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
DISTILBERT |= {"max_position_embeddings": 64}
DEBERTA = {**WIDTHS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
FALCON = {**WIDTHS, "num_kv_heads": 2, "new_decoder_architecture": True}

GROUPED_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "phi3": ("Phi3", {"pad_token_id": 0}),
    "mixtral": ("Mixtral", EXPERTS),
    "starcoder2": ("Starcoder2", {"sliding_window": 4}),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {"attention_multiplier": 0.2}),
    "cohere": ("Cohere", {}),
    "smollm3": ("SmolLM3", {"pad_token_id": 0}),
    "gemma3": ("Gemma3Text", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
}
OTHERS: dict[str, ModelCase] = {
    "gpt_neox": ModelCase("GPTNeoX", WIDTHS, []),
    "opt": ModelCase("OPT", OPT, []),
    "phi": ModelCase("Phi", WIDTHS, []),
    "gpt_bigcode": ModelCase("GPTBigCode", GPT2, []),
    "roberta": ModelCase("Roberta", ROBERTA, []),
    "distilbert": ModelCase("DistilBert", DISTILBERT, []),
    "dinov2": ModelCase("Dinov2", IMAGE, [], ("even",), "image"),
    "deepseek_v3": ModelCase("DeepseekV3", LATENT, []),
    "falcon": ModelCase("Falcon", FALCON, []),
    "falcon with alibi": ModelCase("Falcon", {**FALCON, "alibi": True}, []),
}
EAGER: dict[str, ModelCase] = {
    "gemma2": ModelCase("Gemma2", {**GROUPED, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0}, []),
    "gpt_oss": ModelCase("GptOss", {**GROUPED, **EXPERTS, "sliding_window": 4}, []),
    "bloom": ModelCase("Bloom", {**WIDTHS, "n_layer": 2, "n_head": 4}, []),
    "gptj": ModelCase("GPTJ", GPTJ, []),
    "deberta_v2": ModelCase("DebertaV2", DEBERTA, [], ("even",)),  # its padding attends to everything
}
"""Soft-caps, sinks, positions in the scores and older code: no fused kernel computes their attention."""
FUSED: dict[str, ModelCase | LayerCase] = {
    **MODEL_CASES,
    **{name: ModelCase(model, {**GROUPED, **config}, []) for name, (model, config) in GROUPED_DECODERS.items()},
    **OTHERS,
    **LAYERS,
}
ARCHITECTURES = {**FUSED, **EAGER}
CHEAP = ("llama", "t5", "gpt_oss", "nn.TransformerDecoderLayer", "regard Decoder")
"""Those of the fast tier: grouped heads and padding, cross-attention and a bias, eager with sinks; and layers."""
LIMITS = dict.fromkeys(FUSED, 1e-10) | dict.fromkeys(EAGER, 2e-6)
"""Relative differences of outputs that are rounding, in float64: eager code has a softmax or a factor in float32."""


def _bloom(
    self: nn.Module,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """BloomAttention.forward: positions are a bias of the scores (Press et al. 2022)."""
    batch, tokens, width = hidden_states.shape
    qkv = self.query_key_value(hidden_states).view(batch, tokens, self.num_heads, 3, self.head_dim)
    q, k, v = (qkv[:, :, :, n].transpose(1, 2) for n in range(3))
    if layer_past is not None:
        k, v = layer_past.update(k, v, self.layer_idx)
    bias = alibi.view(batch, self.num_heads, 1, -1)
    output = compute(self, q, k, v, mask=attention_mask, bias=bias)
    return residual + self.dense(output.transpose(1, 2).reshape(batch, tokens, width)), None


def _gptj(self: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Any:
    """GPTJAttention._attn."""
    return compute(self, query, key, value, mask=attention_mask), None


def _deberta(
    self: nn.Module,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    """DisentangledSelfAttention.forward: content and positions, He et al. 2021, equation 4."""
    batch, tokens, width = hidden_states.shape

    def split(t: Tensor) -> Tensor:
        return t.view(batch, tokens, self.num_attention_heads, -1).transpose(1, 2)

    q, k, v = (split(project(hidden_states)) for project in (self.query_proj, self.key_proj, self.value_proj))
    bias = self.disentangled_attention_bias(q.flatten(0, 1), k.flatten(0, 1), relative_pos, rel_embeddings, 3)
    bias, scale = bias.view(batch, -1, tokens, tokens), 1 / math.sqrt(3 * q.shape[-1])
    output = compute(self, q, k, v, mask=attention_mask.bool(), bias=bias, scale=scale)
    return output.transpose(1, 2).reshape(batch, tokens, width), None


METHODS: dict[str, dict[str, tuple[str, Callable[..., Any]]]] = {
    "bloom": {"BloomAttention": ("forward", _bloom)},
    "gptj": {"GPTJAttention": ("_attn", _gptj)},
    "deberta_v2": {"DisentangledSelfAttention": ("forward", _deberta)},
}


@dataclass(frozen=True)
class Architecture:
    """A model as it comes, the same model by hand, and what they read."""

    name: str
    model: nn.Module
    by_hand: ByHand

    def inputs(self, padding: str, seed: int = 0) -> dict[str, Tensor]:
        """What it reads; no cache is returned."""
        case = ARCHITECTURES[self.name]
        if isinstance(case, LayerCase):
            return case.make_inputs(seed)
        inputs: dict[str, Any] = inputs_of_kind(case.input_kind, padding, seed)
        return {key: t.to(self.model.dtype) if t.is_floating_point() else t for key, t in inputs.items()}


@cache
@torch.inference_mode(False)  # whatever the mode of the first test that asks for it
def architecture(name: str, dtype: torch.dtype = torch.float64, head: str = "Model") -> Architecture:
    """An architecture, to be left as it is."""
    case = ARCHITECTURES[name]
    if isinstance(case, LayerCase):
        return Architecture(name, model := case.build(), ByHand(model, functional=True))
    model = case.build(head).to(dtype)
    model.set_attn_implementation("eager" if name in EAGER else "sdpa")
    if "num_local_experts" in case.config:
        model.set_experts_implementation("eager")  # the other ones have no float64
    return Architecture(name, model, ByHand(model, METHODS.get(name), functional=name.startswith("falcon")))


@cache
@torch.inference_mode(False)
def sites(name: str, padding: str, dtype: torch.dtype = torch.float64) -> list[Site]:
    """The first attention of each kind in each stack of an architecture, with two other passes over such texts."""
    this = architecture(name, dtype)
    recordings, attended = [], []
    for seed in (1, 2):
        inputs = this.inputs(padding, seed)
        with torch.no_grad(), regard.watch(this.model) as recording:
            this.model(**inputs)
        recordings.append(recording)
        attended.append(this.by_hand.attended(**inputs))
    return first_sites(recordings, attended)


def cheap_first(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: the cheap architectures in the fast tier, the others in the next."""
    return [pytest.param(name, marks=() if name in CHEAP else pytest.mark.more) for name in names]
