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
class Place:
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


def stack(template: str, layers: int = 2, output: str = "attentions", rows: str = "source") -> list[Place]:
    """The self-attentions of one stack, in order."""
    return [Place(template.format(i), "self", output, i, rows, rows) for i in range(layers)]


def both(own: str, other: str, layers: int = 2, columns: str = "source") -> list[Place]:
    """The attentions of a decoder that reads an encoder, in order."""
    places = []
    for i in range(layers):
        places.append(Place(own.format(i), "self", "decoder_attentions", i, "target", "target"))
        places.append(Place(other.format(i), "cross", "cross_attentions", i, "target", columns))
    return places


def bart_like(columns: str = "source") -> list[Place]:
    encoder = stack("encoder.layers.{}.self_attn", output="encoder_attentions", rows=columns)
    return encoder + both("decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn", columns=columns)


@dataclass(frozen=True)
class Kind:
    """How a model of one architecture is made, what it reads, and where its attentions are."""

    build: Callable[[], nn.Module]
    places: list[Place]
    reads: str = "text"
    """``text``, ``texts`` (a source and a target), ``sound``, ``picture``, ``both`` (a text and a picture)."""
    paddings: tuple[str, ...] = ("even", "right")
    spread: float = 0.3
    """How large its weights are drawn. T5 does not scale its scores down."""


def _clip() -> nn.Module:
    text = {**WIDTHS, "max_position_embeddings": 20, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    config = transformers.CLIPConfig(text_config=text, vision_config={**SEEING, **PICTURE}, projection_dim=16)
    return transformers.CLIPModel(config)


KINDS: dict[str, Kind] = {
    "bert": Kind(
        lambda: transformers.BertModel(transformers.BertConfig(**WIDTHS)),
        stack("encoder.layer.{}.attention.self"),
    ),
    "gpt2": Kind(
        lambda: transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL)
        ),
        stack("h.{}.attn"),
        paddings=("even", "right", "left"),
    ),
    "llama": Kind(
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**GROUPED)),
        stack("layers.{}.self_attn"),
        paddings=("even", "right", "left"),
    ),
    "mistral": Kind(
        lambda: transformers.MistralModel(transformers.MistralConfig(**GROUPED, sliding_window=4)),
        stack("layers.{}.self_attn"),
        paddings=("even", "right", "left"),
    ),
    "qwen3": Kind(
        lambda: transformers.Qwen3Model(transformers.Qwen3Config(**GROUPED)),
        stack("layers.{}.self_attn"),
        paddings=("even", "left"),
    ),
    "t5": Kind(
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
        stack("encoder.block.{}.layer.0.SelfAttention", output="encoder_attentions")
        + both("decoder.block.{}.layer.0.SelfAttention", "decoder.block.{}.layer.1.EncDecAttention"),
        reads="texts",
        spread=0.15,
    ),
    "bart": Kind(
        lambda: transformers.BartModel(transformers.BartConfig(**TOWERS, **SPECIAL)), bart_like(), reads="texts"
    ),
    "marian": Kind(
        lambda: transformers.MarianModel(
            transformers.MarianConfig(**TOWERS, **SPECIAL, decoder_start_token_id=3, forced_eos_token_id=2)
        ),
        bart_like(),
        reads="texts",
    ),
    "whisper": Kind(
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
        bart_like(columns="all"),
        reads="sound",
        paddings=("even",),
    ),
    "vit": Kind(
        lambda: transformers.ViTModel(transformers.ViTConfig(**SEEING, **PICTURE)),
        stack("layers.{}.attention", rows="all"),
        reads="picture",
        paddings=("even",),
    ),
    "clip": Kind(
        _clip,
        stack("vision_model.encoder.layers.{}.self_attn", output="vision_model_output.attentions", rows="all")
        + stack("text_model.encoder.layers.{}.self_attn", output="text_model_output.attentions"),
        reads="both",
    ),
    "modernbert": Kind(
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
        stack("layers.{}.attn", layers=3),
    ),
}

CASES = [(name, padding) for name, kind in KINDS.items() for padding in kind.paddings]


def sharpened(model: nn.Module, spread: float = 0.3) -> nn.Module:
    """Weights drawn so large that heads look at some tokens and not at others, as trained ones do; in evaluation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.copy_(spread * torch.randn(p.shape, generator=generator))
    return model.eval()


@cache
def made(name: str) -> nn.Module:
    """A model of that kind, with the attention that transformers chooses by itself."""
    torch.manual_seed(0)
    model = sharpened(KINDS[name].build(), KINDS[name].spread)
    assert model.config._attn_implementation == "sdpa"
    return model


def real(padding: str, tokens: int = TOKENS) -> Tensor:
    """Which tokens count: (batch, tokens), True for those."""
    lengths = torch.tensor(LENGTHS[padding])[:, None].clamp(max=tokens)
    at = torch.arange(tokens)
    return at >= tokens - lengths if padding == "left" else at < lengths


def inputs(name: str, padding: str, seed: int = 0) -> dict[str, Tensor]:
    """What such a model reads."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 40, (BATCH, TOKENS), generator=generator)
    answer = torch.randint(5, 40, (BATCH, TARGETS), generator=generator)
    sound = torch.randn(BATCH, 8, 40, generator=generator)
    picture = torch.randn(BATCH, 3, 16, 16, generator=generator)
    text = {"input_ids": ids}
    if padding != "even":
        text["attention_mask"] = real(padding).long()
    match KINDS[name].reads:
        case "texts":
            if padding != "even":
                text["decoder_attention_mask"] = real(padding, TARGETS).long()
            return {**text, "decoder_input_ids": answer}
        case "sound":
            return {"input_features": sound, "decoder_input_ids": answer}
        case "picture":
            return {"pixel_values": picture}
        case "both":
            return {**text, "pixel_values": picture}
        case _:
            return text


def eager(name: str, given: dict[str, Tensor], model: nn.Module | None = None) -> dict[str, Tensor]:
    """The maps that the model itself gives out, by the paths of its attentions."""
    slow = copy.deepcopy(model if model is not None else made(name)).eval()
    slow.set_attn_implementation("eager")
    with torch.no_grad():
        out = slow(**given, output_attentions=True)
    maps = {}
    for place in KINDS[name].places:
        found = out
        for part in place.output.split("."):
            found = getattr(found, part)
        maps[place.path] = found[place.layer]
    return maps


@cache
def known(name: str, padding: str) -> dict[str, Tensor]:
    """`eager` of a kind's own inputs, computed once."""
    return eager(name, inputs(name, padding))


def rows(place: Place, padding: str) -> Tensor | None:
    """The rows of a map that count, (batch, queries), or None for all of them."""
    return None if place.rows == "all" else real(padding, TARGETS if place.rows == "target" else TOKENS)


def tensors(found: Any) -> Iterator[Tensor]:
    """Every tensor in what a model returned, in order."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from tensors(value)
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from tensors(value)
    elif is_dataclass(found):
        for field in fields(found):
            yield from tensors(getattr(found, field.name))
    elif hasattr(found, "layers"):  # a cache of transformers
        for layer in found.layers:
            yield from (layer.keys, layer.values)
