"""Models of transformers with ``attn_implementation="regard"``, against sdpa of the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

from bench.table import Row
from bench.timing import medians, peak_mb
from regard.integrations.transformers import attention, attention_mask

TOKENS, VOCABULARY = 16_384, 256
SPECIAL = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Mistral 7B's heads, groups and widths in proportion, an eighth of them; so are those of Gemma 2 and 3.
MISTRAL: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1792,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "max_position_embeddings": TOKENS + 64,
}
GEMMA2 = {**MISTRAL, "intermediate_size": 2048, "num_attention_heads": 2, "query_pre_attn_scalar": 128}
GEMMA3 = {**MISTRAL, "hidden_size": 288, "num_attention_heads": 2, "num_hidden_layers": 6}


@dataclass(frozen=True)
class Shape:
    """A model with a window in some layers or all."""

    name: str
    architecture: str
    config: dict[str, Any]
    window: int | None = None

    def build(self, implementation: str) -> nn.Module:
        """The model with that implementation of attention, with random weights."""
        config = getattr(transformers, f"{self.architecture}Config")(
            **self.config, **SPECIAL, sliding_window=self.window
        )
        torch.manual_seed(0)
        cls = getattr(transformers, f"{self.architecture.removesuffix('Text')}ForCausalLM")
        model: nn.Module = cls._from_config(config, attn_implementation=implementation).eval()
        return model


def _windows(window: int) -> list[Shape]:
    return [
        Shape(f"Mistral's shape, a window of {window:,} in both layers", "Mistral", MISTRAL, window),
        Shape(f"Gemma 3's shape, a window of {window:,} in 5 of 6 layers", "Gemma3Text", GEMMA3, window),
    ]


@torch.inference_mode()
def sliding_windows() -> Iterator[Row]:
    """A prompt of 16,384 tokens: the attention of one layer with a window, and whole models."""
    for window in (1024, 4096):
        yield _one_layer(window)
        for shape in _windows(window):
            ids = torch.randint(3, VOCABULARY, (1, TOKENS))
            ours, theirs = medians(*_forward(shape, ids), rounds=3, warm=False)
            yield Row(f"{shape.name}, {TOKENS:,} tokens: the model", "sdpa", f"{theirs / ours:.2f}x")


def _one_layer(window: int) -> Row:
    q = torch.randn(1, 4, TOKENS, 128)
    k, v = torch.randn(2, 1, 1, TOKENS, 128)
    module = nn.Module()
    module.num_key_value_groups = 4  # type: ignore[assignment]
    function = sliding_window_causal_mask_function(window)
    made = attention_mask(1, TOKENS, TOKENS, mask_function=function)
    dense = sdpa_mask(1, TOKENS, TOKENS, mask_function=function, local_size=window)
    ours, theirs = medians(
        lambda: attention(module, q, k, v, made),  # type: ignore[arg-type]
        lambda: sdpa_attention_forward(module, q, k, v, dense),
        rounds=3,
        warm=False,
    )
    case = f"a layer with a window of {window:,}, {TOKENS:,} tokens: its attention"
    return Row(case, "sdpa", f"{theirs / ours:.2f}x", "5x")


def _forward(shape: Shape, ids: torch.Tensor, rival: str = "sdpa") -> list[Callable[[], object]]:
    models = [shape.build(implementation) for implementation in ("regard", rival)]
    return [lambda model=model: model(ids, use_cache=False, logits_to_keep=1) for model in models]  # type: ignore[misc]


@torch.inference_mode()
def full_attention() -> Iterator[Row]:
    """A model without a window, where sdpa makes no mask: prompts, and the steps of a generation."""
    shape = Shape("Llama's shape, 2 layers", "Llama", MISTRAL)
    for tokens in (128, 2048, 8192):
        ids = torch.randint(3, VOCABULARY, (1, tokens))
        ours, theirs = medians(*_forward(shape, ids), rounds=15 if tokens < 8192 else 5)
        yield Row(f"{shape.name}, full, {tokens:,} tokens: the model", "sdpa", f"{theirs / ours:.2f}x", "0.97x")
    ours, theirs = medians(*(_steps(shape, name) for name in ("regard", "sdpa")), rounds=9)
    yield Row(f"{shape.name}, full, 16 steps after 1,024 tokens", "sdpa", f"{theirs / ours:.2f}x", "0.97x")


def _steps(shape: Shape, implementation: str) -> Callable[[], object]:
    model = shape.build(implementation)
    prompt, token = torch.randint(3, VOCABULARY, (1, 1024)), torch.tensor([[5]])
    cache = DynamicCache()
    model(prompt, past_key_values=cache)

    def steps() -> None:
        for _ in range(16):
            model(token, past_key_values=cache)
        cache.crop(-16)

    return steps


@torch.inference_mode()
def soft_cap() -> Iterator[Row]:
    """Gemma 2, which has no sdpa in transformers: PyTorch's kernel has no soft-cap."""
    tokens = 8192
    ids = torch.randint(3, VOCABULARY, (1, tokens))
    for window in (1024, 4096):
        shape = Shape(f"Gemma 2's shape, a window of {window:,} in 1 of 2 layers", "Gemma2", GEMMA2, window)
        ours, theirs = medians(*_forward(shape, ids, "eager"), rounds=3, warm=False)
        yield Row(f"{shape.name}, {tokens:,} tokens: the model", "eager", f"{theirs / ours:.2f}x")


def mask_memory() -> Iterator[Row]:
    """What the mask of a window takes."""
    lines = """
from regard.integrations.transformers import attention_mask
from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function
made = {make}(1, {small}, {small}, mask_function=sliding_window_causal_mask_function(64), local_size=64)
made = {make}(1, {tokens}, {tokens}, mask_function=sliding_window_causal_mask_function(1024), local_size=1024)
"""
    ours, theirs = (
        peak_mb(lines.format(make=make, tokens=TOKENS, small=128)) for make in ("attention_mask", "sdpa_mask")
    )
    yield Row(f"the mask of a window, {TOKENS:,} tokens", f"sdpa: {theirs:,.0f} MB", f"{ours:.0f} MB", "0 MB")
