"""Small random models of transformers, how to run them, and the maps that they give out themselves when eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def each_mode(**axes: Any) -> pytest.MarkDecorator:
    """A test with every combination of the values of these axes (name = list), in each mode.

    Which mode a combination meets goes round, so that neighbours on any axis meet different ones; the other two modes
    of each are slow.
    """
    params = []
    for at in product(*(range(len(values)) for values in axes.values())):
        values = [axes[name][i] for name, i in zip(axes, at, strict=True)]
        for number, mode in enumerate(MODES):
            marks = () if sum(at) % 3 == number else pytest.mark.slow
            params.append(pytest.param(*values, mode, marks=marks, id="-".join([*map(str, values), mode.__name__])))
    return pytest.mark.parametrize((*axes, "mode"), params)


BATCH, TOKENS, TARGETS = 3, 12, 7
"""Sizes of a batch: texts, tokens of the longest, tokens of the longest answer."""
LENGTHS = {"even": [12, 12, 12], "right": [12, 7, 3], "left": [12, 7, 3]}
"""Tokens that count in each text, by where its padding stands."""

WIDTHS: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = {**WIDTHS, "num_key_value_heads": 2, "head_dim": 8}
TOWERS: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PICTURE = {"image_size": 16, "patch_size": 4}
SEEING = {k: v for k, v in WIDTHS.items() if k not in ("vocab_size", "max_position_embeddings")}


@dataclass(frozen=True)
class AttentionSpec:
    """One attention of a model."""

    path: str
    kind: str
    """``self`` or ``cross``."""
    output: str
    """Where the eager model's output holds the maps of this stack."""
    layer: int
    rows: str = "source"
    """Whose tokens look: ``source``, ``target``, or ``all`` where every row counts."""
    columns: str = "source"


def stack_attentions(
    template: str, layers: int = 2, output: str = "attentions", rows: str = "source"
) -> list[AttentionSpec]:
    """The self-attentions of one stack, in order."""
    return [AttentionSpec(template.format(i), "self", output, i, rows, rows) for i in range(layers)]


def decoder_attentions(own: str, other: str, layers: int = 2, columns: str = "source") -> list[AttentionSpec]:
    """The attentions of a decoder that reads an encoder, in order."""
    attentions = []
    for i in range(layers):
        attentions.append(AttentionSpec(own.format(i), "self", "decoder_attentions", i, "target", "target"))
        attentions.append(AttentionSpec(other.format(i), "cross", "cross_attentions", i, "target", columns))
    return attentions


def bart_attentions(columns: str = "source") -> list[AttentionSpec]:
    encoder = stack_attentions("encoder.layers.{}.self_attn", output="encoder_attentions", rows=columns)
    return encoder + decoder_attentions(
        "decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn", columns=columns
    )


@dataclass(frozen=True)
class ModelCase:
    """How a model of one architecture is made, what it reads, and where its attentions are."""

    build: Callable[[], nn.Module]
    attentions: list[AttentionSpec]
    input_kind: str = "text"
    """``text``, ``texts`` (a source and a target), ``sound``, ``picture``, ``both`` (a text and a picture)."""
    paddings: tuple[str, ...] = ("even", "right")
    weight_scale: float = 0.3
    """How large its weights are drawn. T5 does not scale its scores down."""


def _clip() -> nn.Module:
    text = {**WIDTHS, "max_position_embeddings": 20, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    config = transformers.CLIPConfig(text_config=text, vision_config={**SEEING, **PICTURE}, projection_dim=16)
    return transformers.CLIPModel(config)


MODEL_CASES: dict[str, ModelCase] = {
    "bert": ModelCase(
        lambda: transformers.BertModel(transformers.BertConfig(**WIDTHS)),
        stack_attentions("encoder.layer.{}.attention.self"),
    ),
    "gpt2": ModelCase(
        lambda: transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL)
        ),
        stack_attentions("h.{}.attn"),
        paddings=("even", "right", "left"),
    ),
    "llama": ModelCase(
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**GROUPED)),
        stack_attentions("layers.{}.self_attn"),
        paddings=("even", "right", "left"),
    ),
    "mistral": ModelCase(
        lambda: transformers.MistralModel(transformers.MistralConfig(**GROUPED, sliding_window=4)),
        stack_attentions("layers.{}.self_attn"),
        paddings=("even", "right", "left"),
    ),
    "qwen3": ModelCase(
        lambda: transformers.Qwen3Model(transformers.Qwen3Config(**GROUPED)),
        stack_attentions("layers.{}.self_attn"),
        paddings=("even", "left"),
    ),
    "t5": ModelCase(
        lambda: transformers.T5Model(
            transformers.T5Config(
                vocab_size=40,
                d_model=32,
                d_kv=8,
                d_ff=40,
                num_layers=2,
                num_heads=4,
                relative_attention_num_buckets=8,
                relative_attention_max_distance=10,
            )
        ),
        stack_attentions("encoder.block.{}.layer.0.SelfAttention", output="encoder_attentions")
        + decoder_attentions("decoder.block.{}.layer.0.SelfAttention", "decoder.block.{}.layer.1.EncDecAttention"),
        input_kind="texts",
        weight_scale=0.15,
    ),
    "bart": ModelCase(
        lambda: transformers.BartModel(transformers.BartConfig(**TOWERS, **SPECIAL)),
        bart_attentions(),
        input_kind="texts",
    ),
    "marian": ModelCase(
        lambda: transformers.MarianModel(
            transformers.MarianConfig(**TOWERS, **SPECIAL, decoder_start_token_id=3, forced_eos_token_id=2)
        ),
        bart_attentions(),
        input_kind="texts",
    ),
    "whisper": ModelCase(
        lambda: transformers.WhisperModel(
            transformers.WhisperConfig(
                **{k: v for k, v in TOWERS.items() if k != "max_position_embeddings"},
                **SPECIAL,
                decoder_start_token_id=3,
                num_mel_bins=8,
                max_source_positions=20,
                max_target_positions=20,
            )
        ),
        bart_attentions(columns="all"),
        input_kind="sound",
        paddings=("even",),
    ),
    "vit": ModelCase(
        lambda: transformers.ViTModel(transformers.ViTConfig(**SEEING, **PICTURE)),
        stack_attentions("layers.{}.attention", rows="all"),
        input_kind="picture",
        paddings=("even",),
    ),
    "clip": ModelCase(
        _clip,
        stack_attentions(
            "vision_model.encoder.layers.{}.self_attn", output="vision_model_output.attentions", rows="all"
        )
        + stack_attentions("text_model.encoder.layers.{}.self_attn", output="text_model_output.attentions"),
        input_kind="both",
    ),
    "modernbert": ModelCase(
        lambda: transformers.ModernBertModel(
            transformers.ModernBertConfig(
                **{**WIDTHS, "num_hidden_layers": 3},
                **SPECIAL,
                cls_token_id=1,
                sep_token_id=2,
                local_attention=6,
                global_attn_every_n_layers=3,
            )
        ),
        stack_attentions("layers.{}.attn", layers=3),
    ),
}

CASES = [(name, padding) for name, kind in MODEL_CASES.items() for padding in kind.paddings]


def sharpen(model: nn.Module, weight_scale: float = 0.3) -> nn.Module:
    """Weights drawn so large that heads look at some tokens and not at others, as trained ones do; in evaluation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.copy_(weight_scale * torch.randn(p.shape, generator=generator))
    return model.eval()


@cache
def load_model(name: str) -> nn.Module:
    """A model of that kind, with the attention that transformers chooses by itself."""
    torch.manual_seed(0)
    model = sharpen(MODEL_CASES[name].build(), MODEL_CASES[name].weight_scale)
    assert model.config._attn_implementation == "sdpa"
    return model


def token_mask(padding: str, tokens: int = TOKENS) -> Tensor:
    """Which tokens count: (batch, tokens), True for those."""
    lengths = torch.tensor(LENGTHS[padding])[:, None].clamp(max=tokens)
    at = torch.arange(tokens)
    return at >= tokens - lengths if padding == "left" else at < lengths


def make_inputs(name: str, padding: str, seed: int = 0) -> dict[str, Tensor]:
    """What such a model reads."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 40, (BATCH, TOKENS), generator=generator)
    answer = torch.randint(5, 40, (BATCH, TARGETS), generator=generator)
    sound = torch.randn(BATCH, 8, 40, generator=generator)
    picture = torch.randn(BATCH, 3, 16, 16, generator=generator)
    text = {"input_ids": ids}
    if padding != "even":
        text["attention_mask"] = token_mask(padding).long()
    match MODEL_CASES[name].input_kind:
        case "texts":
            if padding != "even":
                text["decoder_attention_mask"] = token_mask(padding, TARGETS).long()
            return {**text, "decoder_input_ids": answer}
        case "sound":
            return {"input_features": sound, "decoder_input_ids": answer}
        case "picture":
            return {"pixel_values": picture}
        case "both":
            return {**text, "pixel_values": picture}
        case _:
            return text


def eager_maps(name: str, model_inputs: dict[str, Tensor], model: nn.Module | None = None) -> dict[str, Tensor]:
    """The maps that the model itself gives out, by the paths of its attentions."""
    slow = copy.deepcopy(model if model is not None else load_model(name)).eval()
    slow.set_attn_implementation("eager")
    with torch.no_grad():
        out = slow(**model_inputs, output_attentions=True)
    maps = {}
    for spec in MODEL_CASES[name].attentions:
        output = out
        for part in spec.output.split("."):
            output = getattr(output, part)
        maps[spec.path] = output[spec.layer]
    return maps


@cache
def cached_eager_maps(name: str, padding: str) -> dict[str, Tensor]:
    """`eager` of a kind's own inputs, computed once."""
    return eager_maps(name, make_inputs(name, padding))


def counted_rows(spec: AttentionSpec, padding: str) -> Tensor | None:
    """The rows of a map that count, (batch, queries), or None for all of them."""
    return None if spec.rows == "all" else token_mask(padding, TARGETS if spec.rows == "target" else TOKENS)


def output_tensors(output: Any) -> Iterator[Tensor]:
    """Every tensor in what a model returned, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from output_tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from output_tensors(value)
    elif is_dataclass(output):
        for field in fields(output):
            yield from output_tensors(getattr(output, field.name))
    elif hasattr(output, "layers"):  # a cache of transformers
        for layer in output.layers:
            yield from (layer.keys, layer.values)
