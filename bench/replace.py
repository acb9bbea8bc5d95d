"""PyTorch's encoder layers against themselves with regard's attention inside (`regard.replace`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

import regard
from bench.table import Row
from bench.timing import medians, peak_mb

D_MODEL, HEADS, D_FF = 512, 8, 2048
TOKENS = 4096

MEMORY = """
from torch import nn
import regard
from bench.replace import attention, blocked, D_MODEL
model, x = attention(), torch.randn(1, {tokens}, D_MODEL)
mask = blocked("window 256", {tokens})
run = lambda: {call}
{replace}
run()
"""


def layer(dropout: float = 0.0) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(D_MODEL, HEADS, D_FF, dropout=dropout, batch_first=True)


def attention() -> nn.MultiheadAttention:
    return nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)


def blocked(kind: str, tokens: int) -> Tensor | None:
    """A mask of ``nn.MultiheadAttention``, True = may NOT attend."""
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    if kind == "window 256":
        return (distance < 0) | (distance >= 256)
    return distance < 0 if kind == "causal" else None


def _pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """PyTorch's module, and a copy with regard's attention."""
    ours = deepcopy(module)
    regard.replace(ours)
    return ours, module


def _inference(module: nn.Module, *args: Any, **kwargs: Any) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return module.eval()(*args, **kwargs)

    return run


def _training(module: nn.Module, *args: Any, **kwargs: Any) -> Callable[[], object]:
    def run() -> object:
        module.train().zero_grad()
        output = module(*args, **kwargs)
        (output[0] if isinstance(output, tuple) else output).sum().backward()
        return output

    return run


def _row(case: str, mode: Callable[..., Callable[[], object]], module: nn.Module, *args: Any, **kwargs: Any) -> Row:
    mine, theirs = medians(*(mode(m, *args, **kwargs) for m in _pair(module)), rounds=5, warm=len(args[0][0]) < TOKENS)
    return Row(case, type(module).__name__, f"{theirs / mine:.2f}x")


def replaced_layers() -> Iterator[Row]:
    """Long texts with masks, and short texts, where PyTorch has a fused layer."""
    x = torch.randn(1, TOKENS, D_MODEL)
    for kind in ("no mask", "causal", "window 256"):
        mask = blocked(kind, TOKENS)
        dense = None if mask is None else torch.zeros(TOKENS, TOKENS).masked_fill(mask, -torch.inf)
        for name, t in ((", boolean", mask), (", float", dense)) if mask is not None else (("", None),):
            yield _row(f"layer, inference, {kind}{name}, {TOKENS:,} tokens", _inference, layer(), x, src_mask=t)
        yield _row(f"layer, update, {kind}, {TOKENS:,} tokens", _training, layer(), x, src_mask=mask)
    yield _row(f"attention, inference, window 256, {TOKENS:,} tokens", _inference, attention(), x, x, x, **_masked())
    with_weights = {"attn_mask": blocked("causal", TOKENS)}
    yield _row(f"the same, causal, with averaged weights, {TOKENS:,}", _inference, attention(), x, x, x, **with_weights)
    y = torch.randn(1, 1024, D_MODEL)
    yield _row("layer, update, dropout 0.1, 1,024 tokens", _training, layer(dropout=0.1), y)
    causal = blocked("causal", TOKENS)
    yield _row(f"layer, update, dropout 0.1, causal, {TOKENS:,}", _training, layer(dropout=0.1), x, src_mask=causal)
    yield _row(
        "attention, inference, with averaged weights, 8 x 512", _inference, attention(), *[x.view(8, 512, -1)] * 3
    )
    for batch, tokens in ((1, 16), (8, 64), (8, 128), (4, 512)):
        short = torch.randn(batch, tokens, D_MODEL)
        yield _row(f"layer, inference, {batch} x {tokens} tokens, no mask", _inference, layer(), short)
    yield _padded()
    for case, call in (
        ("attention, inference, window 256", "model.eval()(x, x, x, attn_mask=mask, need_weights=False)"),
        ("attention, update, window 256", "model(x, x, x, attn_mask=mask, need_weights=False)[0].sum().backward()"),
    ):
        if "inference" in case:
            call = f"torch.inference_mode()(lambda: {call})()"
        both = [peak_mb(MEMORY.format(tokens=TOKENS, call=call, replace=r)) for r in ("regard.replace(model)", "")]
        yield Row(f"{case}, {TOKENS:,} tokens", "nn.MultiheadAttention", f"{both[0]:.0f} MiB, theirs {both[1]:.0f}")


def _masked() -> dict[str, Any]:
    return {"attn_mask": blocked("window 256", TOKENS), "need_weights": False}


def _padded() -> Row:
    """Texts of different lengths, which PyTorch's encoder makes a nested tensor in inference."""
    model = nn.TransformerEncoder(layer(), 2)
    lengths = torch.linspace(32, 512, 8).long()
    padding = torch.arange(512) >= lengths[:, None]
    x = torch.randn(8, 512, D_MODEL)
    return _row("encoder, inference, 8 texts of 32 to 512 tokens", _inference, model, x, src_key_padding_mask=padding)
