"""Calls of ``nn.MultiheadAttention``: any of its options, masks of each kind, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.integrations.pytorch.modules import replacement_class

BATCH, HEADS, WIDTH, QUERIES, KEYS = 2, 2, 8, 6, 5
KINDS = ["self", "keys are values", "all differ"]
ATTN_MASKS = ["none", "causal", "window", "random", "-inf window", "numbers", "numbers and -inf", "by head", "learned"]
PADDINGS = ["none", "boolean", "-inf", "numbers"]
WEIGHTS = {
    "no weights": {"need_weights": False},
    "average": {},
    "by head": {"need_weights": True, "average_attn_weights": False},
}


@dataclass
class MultiheadCall:
    """An attention and a call of it."""

    options: dict[str, Any]
    kind: str = "self"
    batched: bool = True
    attn_mask: str = "none"
    padding: str = "none"
    weights: str = "average"
    seed: int = 0

    def module(self) -> nn.MultiheadAttention:
        torch.manual_seed(self.seed)
        module = nn.MultiheadAttention(WIDTH, HEADS, **self.options).double().eval()
        with torch.no_grad():  # biases are zero at first
            for p in module.parameters():
                p.add_(torch.randn_like(p), alpha=0.3)
        return module

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        torch.manual_seed(self.seed + 1)
        keys = QUERIES if self.kind == "self" else KEYS
        query = self._tokens(QUERIES, WIDTH)
        if self.kind == "self":
            inputs = (query, query, query)
        else:
            key = self._tokens(keys, self.options.get("kdim", WIDTH))
            same = self.kind == "keys are values"
            inputs = (query, key, key if same else self._tokens(keys, self.options.get("vdim", WIDTH)))
        call: dict[str, Any] = dict(WEIGHTS[self.weights])
        if self.attn_mask != "none":
            call["attn_mask"] = _attn_mask(self.attn_mask, (BATCH if self.batched else 1) * HEADS, QUERIES, keys)
        if self.padding != "none":
            call["key_padding_mask"] = _padding(self.padding, keys)[: None if self.batched else 1]
            if not self.batched:
                call["key_padding_mask"] = call["key_padding_mask"][0]
        return inputs, call

    def _tokens(self, count: int, width: int) -> Tensor:
        shape = (BATCH, count, width) if self.options.get("batch_first") else (count, BATCH, width)
        return torch.randn(shape if self.batched else (count, width)).double().requires_grad_()


def replaced(module: nn.Module) -> nn.Module:
    """The same module object, of the class that replaces its own."""
    module.__class__ = replacement_class(type(module))
    return module


def assert_same(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
    """PyTorch's outputs and weights and their gradients, from the module and from its replacement, are equal."""
    leaves = {id(t): t for t in (*args, *kwargs.values(), *module.parameters()) if _needs_gradient(t)}
    results = []
    for call in (module, replaced):
        if call is replaced:
            replaced(module)
        outputs = [t for t in module(*args, **kwargs) if t is not None]
        loss = sum((t * torch.arange(t.numel()).cos().reshape(t.shape)).sum() for t in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)])
    for expected, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _attn_mask(kind: str, rows: int, queries: int, keys: int) -> Tensor:
    query, key = torch.arange(queries)[:, None], torch.arange(keys)
    blocked = {"causal": key > query, "window": (key > query) | (key <= query - 3)}
    window = (key > query + 1) | (key < query - 2)
    numbers = torch.randn(queries, keys).double()
    if kind in blocked:
        t = blocked[kind]
    elif kind == "random":
        t = (torch.rand(queries, keys) < 0.4) & (key > 0)
    elif kind == "-inf window":
        t = torch.zeros(queries, keys).double().masked_fill(window, -torch.inf)
    elif kind == "by head":
        t = (torch.rand(rows, queries, keys) < 0.4) & (key > 0)
    else:
        t = numbers.masked_fill(window, -torch.inf) if kind == "numbers and -inf" else numbers
        t.requires_grad_(kind == "learned")
    # No query may be left with nothing: there PyTorch gives NaN.
    return t if t.is_floating_point() and kind != "-inf window" else _with_first_key(t)


def _with_first_key(t: Tensor) -> Tensor:
    """A mask where every query may attend to the first key if it may attend to nothing else."""
    blocked = t if t.dtype == torch.bool else t == -torch.inf
    empty = blocked.all(-1, keepdim=True) & (torch.arange(t.shape[-1]) == 0)
    return t.masked_fill(empty, 0)


def _padding(kind: str, keys: int) -> Tensor:
    padded = torch.arange(keys) >= torch.tensor([[keys], [keys - 1]])
    if kind == "boolean":
        return padded
    zeros = torch.zeros(BATCH, keys).double()
    return zeros.masked_fill(padded, -torch.inf) if kind == "-inf" else torch.randn(BATCH, keys).double()
