"""Watching a model in a test: the recording of one pass, and what its maps have to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.lens import AttentionMap, Recording

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


class FunctionModule(nn.Module):
    """A module whose forward pass is any function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class FunctionModel(FunctionModule):
    """A model with one attention, ``attn``, that is any function."""

    def __init__(self, function: Callable[..., Any] = nn.functional.scaled_dot_product_attention) -> None:
        super().__init__(function)
        self.attn = FunctionModule(function)

    def forward(self, *args: Any) -> Any:
        return self.attn(*args)


def sharpen(model: nn.Module, weight_scale: float = 0.3) -> Any:
    """Weights drawn so large that heads attend to some tokens and not to others, as trained ones do; in evaluation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.copy_(weight_scale * torch.randn(p.shape, generator=generator))
    return model.eval()


def random_qkv(batch=2, heads=4, kv_heads=None, queries=5, keys=7, width=8, v_width=None, dtype=torch.float32, seed=0):
    """Queries, keys and values with scores large enough that weights differ."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads, queries, width), (kv_heads or heads, keys, width), (kv_heads or heads, keys, v_width or width)
    return [2 * torch.randn(batch, *size, generator=generator).to(dtype) for size in sizes]


def record(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Recording, Tensor]:
    """The recording of a pass and its output, which has the bits of an unwatched pass."""
    state = torch.get_rng_state()
    expected = list(output_tensors(model(*args, **kwargs)))
    torch.set_rng_state(state)
    with regard.watch(model) as recording:
        got = list(output_tensors(model(*args, **kwargs)))
    assert len(expected) == len(got) >= 1
    assert all(torch.equal(a, b) and a.requires_grad == b.requires_grad for a, b in zip(expected, got, strict=True))
    return recording, got[0]


def train_once(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The loss and the gradients of one pass in training, with the same draws of dropout each time."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = sum(t.square().sum() for t in output_tensors(model(*args, **kwargs)) if t.requires_grad)
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def definition(q: Tensor, k: Tensor, *, scale=None, allowed=None, bias=None) -> Tensor:
    """softmax(q kT * scale + bias) in float64, written out; a group of heads has one head of keys."""
    q, k = q.detach().double(), k.detach().double()
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0)


def assert_map(m: AttentionMap, expected: Tensor, rows: Tensor | None = None, max_error: float = 1e-4) -> None:
    """A map has these weights, in the rows (batch, queries) that count, and is the one that the model used."""
    assert m.shape[-2:] == expected.shape[-2:]
    difference = m.dense().double().reshape(expected.shape) - expected.double()
    if rows is not None:
        difference = difference.where(rows[:, None, :, None], 0.0)
    assert difference.abs().max() <= 1e-5
    assert m.error < max_error
    assert m.verified


def assert_maps(recording: Recording, expected: dict[str, Tensor], rows: Tensor | None = None) -> None:
    """These attentions in this order, with these weights."""
    assert list(recording) == list(expected)
    for path, dense in expected.items():
        assert_map(recording[path], dense, rows)


def output_tensors(output: Any) -> Iterator[Tensor]:
    """Every tensor in what a model returned, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        yield from output_tensors(list(output.values()))
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from output_tensors(value)
    elif hasattr(output, "layers"):  # a cache of transformers
        for layer in output.layers:
            yield from (layer.keys, layer.values)
