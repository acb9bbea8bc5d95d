"""PyTorch's own layers, FlexAttention and models of `regard.transformer`, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex

from lens.watching import sharpen
from regard import mask
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder

WIDTH, HEADS, TOKENS, SOURCE = 32, 4, 7, 9
LENGTHS = torch.tensor([9, 7, 4])
"""Of the source, where it is padded."""
PADDING = torch.arange(SOURCE) >= LENGTHS[:, None]
SIZES: dict[str, Any] = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 40, "batch_first": True}
PAPER = Config(vocab_size=40, d_model=WIDTH, num_layers=2, num_heads=HEADS, d_ff=40)
MODERN = Config(
    vocab_size=40,
    d_model=WIDTH,
    num_layers=2,
    num_heads=HEADS,
    d_ff=40,
    num_kv_heads=2,
    positions="rotary",
    norm="rms",
    norm_position="pre",
    activation="silu",
    gated=True,
    feed_forward_bias=False,
    scale_embedding=False,
    windows=(None, 4),
)


class CrossAttention(nn.Module):
    """One `nn.MultiheadAttention`, over another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.attn(x, context, context, need_weights=False)[0]


class FlexAttention(nn.Module):
    """Two heads of keys for four of queries, over the last four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
        q, k, v = (t.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for t in parts)
        block_mask = flex.create_block_mask(last_four, None, None, x.shape[1], x.shape[1], device="cpu")
        output = flex.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
        return self.out(output.transpose(1, 2).flatten(2))


def last_four(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < 4)


def states(seed: int, tokens: int = SOURCE) -> Tensor:
    return torch.randn(3, tokens, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(seed: int, tokens: int = SOURCE) -> Tensor:
    return torch.randint(1, 40, (3, tokens), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class LayerCase:
    """How to make a model, and what it reads for a seed."""

    make: Callable[[], nn.Module]
    make_inputs: Callable[[int], dict[str, Any]]
    paddings: tuple[str, ...] = ("even",)

    def build(self) -> nn.Module:
        """Random weights; biases too, so that no output is zero, and norms that are not all the same."""
        torch.manual_seed(0)
        model = sharpen(self.make(), 0.3).double()
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim == 1:
                    p.add_(0.2 * torch.randn_like(p))
        return model


make_layer = partial(nn.TransformerEncoderLayer, **SIZES)
DECODER_MASKS = {
    "tgt_mask": torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1),
    "memory_key_padding_mask": PADDING,
}
LAYERS: dict[str, LayerCase] = {
    "nn.MultiheadAttention": LayerCase(
        CrossAttention, lambda seed: {"x": states(seed, TOKENS), "context": states(seed + 9)}
    ),
    "nn.TransformerEncoderLayer": LayerCase(make_layer, lambda seed: {"src": states(seed)}),
    "nn.TransformerEncoderLayer, norm first": LayerCase(
        partial(make_layer, norm_first=True), lambda seed: {"src": states(seed)}
    ),
    "nn.TransformerEncoder": LayerCase(
        lambda: nn.TransformerEncoder(make_layer(), 2, enable_nested_tensor=False),
        lambda seed: {"src": states(seed), "src_key_padding_mask": PADDING},
    ),
    "nn.TransformerDecoderLayer": LayerCase(
        partial(nn.TransformerDecoderLayer, **SIZES),
        lambda seed: {"tgt": states(seed, TOKENS), "memory": states(seed + 9), **DECODER_MASKS},
    ),
    "FlexAttention": LayerCase(
        lambda: nn.Sequential(FlexAttention(), FlexAttention()), lambda seed: {"input": states(seed)}
    ),
    "regard Encoder": LayerCase(
        partial(Encoder, PAPER), lambda seed: {"ids": ids(seed), "mask": mask.padding(LENGTHS)}
    ),
    "regard EncoderDecoder": LayerCase(
        partial(EncoderDecoder, PAPER),
        lambda seed: {"source": ids(seed), "target": ids(seed + 9, TOKENS), "source_mask": mask.padding(LENGTHS)},
    ),
    "regard Decoder": LayerCase(partial(Decoder, MODERN), lambda seed: {"ids": ids(seed)}),
}
