"""A small decoder, and the same numbers written out with a softmax, in which heads and pairs can be removed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, HEADS, WIDTH, VOCABULARY, TOKENS = 2, 3, 4, 11, 6
PATHS = [f"layers.{n}" for n in range(LAYERS)]


class ToyAttention(nn.Module):
    """Causal self-attention with three heads."""

    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))

    def split(self, x: Tensor) -> list[Tensor]:
        return [p(x).unflatten(-1, (HEADS, WIDTH)).transpose(-2, -3) for p in (self.q, self.k, self.v)]

    def forward(self, x: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(*self.split(x), is_causal=True)
        return self.out(heads.transpose(-2, -3).flatten(-2))


class ToyDecoder(nn.Module):
    """Token ids to logits; as a dict with logits, as transformers has them."""

    def __init__(self, positions: int = 16) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.token, self.position = nn.Embedding(VOCABULARY, size), nn.Embedding(positions, size)
        self.layers = nn.ModuleList(ToyAttention() for _ in range(LAYERS))
        self.logits = nn.Linear(size, VOCABULARY)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator))
        self.double().eval()

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.token(ids) + self.position(torch.arange(ids.shape[-1]))
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"logits": self.logits(x)}


@torch.no_grad()
def by_hand(
    model: ToyDecoder,
    ids: Tensor,
    *,
    replace: Callable[[int, Tensor], Tensor] = lambda layer, heads: heads,
    blocked: Callable[[int], Any] = lambda layer: None,
) -> Tensor:
    """The logits (tokens, vocabulary) of one text (tokens,).

    `replace` changes the output (heads, tokens, width) of a layer, `blocked` gives the pairs (tokens, tokens) that a
    layer may not look at.
    """
    x = model.token(ids) + model.position(torch.arange(len(ids)))
    for n, layer in enumerate(model.layers):
        q, k, v = layer.split(x)
        allowed = torch.ones(len(ids), len(ids)).tril().bool()
        if (pairs := blocked(n)) is not None:
            allowed = allowed & ~pairs
        scores = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(~allowed, -math.inf)
        heads = replace(n, scores.softmax(-1).nan_to_num(0.0) @ v)
        x = x + torch.tanh(layer.out(heads.transpose(0, 1).flatten(1)))
    return model.logits(x)


def texts(count: int = 2, tokens: int = TOKENS) -> Tensor:
    """Random texts, (count, tokens)."""
    return torch.randint(VOCABULARY, (count, tokens), generator=torch.Generator().manual_seed(2))


def difference(logits: Tensor) -> float:
    """The logit of token 3 minus that of token 5, after the last token."""
    return float(logits[-1, 3] - logits[-1, 5])


def replaced(at: int, head: int | None, value: Tensor | float) -> Callable[[int, Tensor], Tensor]:
    """For `by_hand`: the output of one head, or of all, in one layer."""

    def replace(layer: int, heads: Tensor) -> Tensor:
        if layer != at:
            return heads
        heads = heads.clone()
        heads[slice(None) if head is None else head] = value
        return heads

    return replace


def without_head(model: nn.Module, projection: str, head: int, width: int, *args: Any, **inputs: Any) -> Any:
    """The output with a head's slice of the output projection's input zeroed: a hook, and nothing of regard."""

    def hook(module: nn.Module, args: Any) -> Any:
        x = args[0].clone()
        x[..., head * width : (head + 1) * width] = 0
        return x, *args[1:]

    handle = model.get_submodule(projection).register_forward_pre_hook(hook)
    with torch.no_grad():
        output = model(*args, **inputs)
    handle.remove()
    return output
