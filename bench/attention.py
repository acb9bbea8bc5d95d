"""Attention against its rivals: 12 heads of 64, float32, no batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from bench.table import Row
from bench.timing import MATMUL, matmul, medians, peak_mb
from regard import mask

HEADS, WIDTH = 12, 64


def _qkv(tokens: int, *, gradient: bool = False) -> list[Tensor]:
    return [torch.randn(1, HEADS, tokens, WIDTH, requires_grad=gradient) for _ in range(3)]


def _row(
    case: str,
    ours: Callable[[], object],
    rival: str,
    *theirs: Callable[[], object],
    flops: float,
    bar: str = "",
    rounds: int = 9,
) -> Row:
    """Ours against the fastest of theirs; flops are the multiplications and additions that cannot be left out."""
    mine, rate, *others = medians(ours, matmul(), *theirs, rounds=rounds)
    return Row(case, rival, f"{min(others) / mine:.2f}x", bar, f"{mine / (flops / MATMUL * rate):.1f}x")


def _pairs(tokens: int, kind: str) -> int:
    return tokens * tokens if kind == "full" else tokens * (tokens + 1) // 2


@torch.inference_mode()
def attending() -> Iterator[Row]:
    """The fused kernel through `attend`."""
    for tokens in (128, 512, 2048, 8192):
        q, k, v = _qkv(tokens)
        for kind, who in (("full", None), ("causal", mask.causal())):
            yield _row(
                f"attend, {kind}, {tokens:,} tokens",
                lambda q=q, k=k, v=v, who=who: regard.attend(q, k, v, who),  # type: ignore[misc]
                "F.scaled_dot_product_attention",
                lambda q=q, k=k, v=v, kind=kind: F.scaled_dot_product_attention(q, k, v, is_causal=kind == "causal"),  # type: ignore[misc]
                flops=4 * HEADS * WIDTH * _pairs(tokens, kind),
                bar="0.95x",
                rounds=25 if tokens < 2048 else 9,
            )


def multihead() -> Iterator[Row]:
    """The module, d_model 768, against PyTorch's and x-transformers'."""
    from x_transformers.x_transformers import Attention

    d_model = HEADS * WIDTH
    # With its biases, which are its default and open its fast path.
    ours = regard.MultiHeadAttention(d_model, HEADS, bias=True).eval()
    pytorchs = nn.MultiheadAttention(d_model, HEADS, batch_first=True).eval()
    xs = Attention(dim=d_model, heads=HEADS, dim_head=WIDTH, flash=True).eval()
    for tokens in (16, 64, 256, 1024, 2048, 4096):
        x = torch.randn(1, tokens, d_model)
        calls = (
            lambda x: ours(x),
            lambda x: pytorchs(x, x, x, need_weights=False)[0],
            lambda x: xs(x),
        )
        flops = 8 * tokens * d_model**2 + 4 * d_model * tokens**2
        with torch.inference_mode():
            mine, theirs, others, rate = medians(
                *(lambda call=call, x=x: call(x) for call in calls),
                matmul(),
                rounds=25 if tokens < 1024 else 9,  # type: ignore[misc]
            )
        floor = f"{mine / (flops / MATMUL * rate):.1f}x"
        name = f"MultiHeadAttention forward, {tokens:,} tokens"
        yield Row(name, "nn.MultiheadAttention", f"{theirs / mine:.2f}x", "1.8x" if tokens >= 2048 else "1.0x", floor)
        yield Row(name, "x-transformers", f"{others / mine:.2f}x", "1.0x", floor)

        x.requires_grad_()
        back = [_with_backward(call, module, x) for call, module in zip(calls, (ours, pytorchs, xs), strict=True)]
        mine, theirs, others, rate = medians(*back, matmul(), rounds=15 if tokens < 1024 else 5)
        # The backward pass multiplies twice as much as the forward pass, and the scores once more.
        floor = f"{mine / ((3 * flops + 2 * d_model * tokens**2) / MATMUL * rate):.1f}x"
        name = f"the same, forward and backward, {tokens:,} tokens"
        yield Row(name, "nn.MultiheadAttention", f"{theirs / mine:.2f}x", "1.0x", floor)
        yield Row(name, "x-transformers", f"{others / mine:.2f}x", "1.0x", floor)


def _with_backward(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> Callable[[], None]:
    def both() -> None:
        call(x).sum().backward()
        module.zero_grad(set_to_none=True)
        x.grad = None

    return both


def windows() -> Iterator[Row]:
    """A window of 256, against the fused kernel with the mask as a tensor, and against itself at other lengths."""
    tokens, width = 16_384, 256
    who = mask.window(width)
    dense = who.dense(tokens, tokens)
    pairs = int(dense.sum())
    name = f"window {width}, {tokens:,} tokens"
    q, k, v = _qkv(tokens)
    with torch.inference_mode():
        yield _row(
            f"{name}, forward",
            lambda: regard.attend(q, k, v, who),
            "fused kernel with a dense mask",
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=dense),
            flops=4 * HEADS * WIDTH * pairs,
            bar="20x",
            rounds=5,
        )
    leaves = _qkv(tokens, gradient=True)

    def both(output: Tensor) -> None:
        torch.autograd.grad(output.sum(), leaves)

    yield _row(
        f"{name}, forward and backward",
        lambda: both(regard.attend(*leaves, who)),
        "fused kernel with a dense mask",
        lambda: both(F.scaled_dot_product_attention(*leaves, attn_mask=dense)),
        flops=14 * HEADS * WIDTH * pairs,
        bar="10x",
        rounds=3,
    )
    lengths = (4096, 8192, 16_384, 32_768)
    inputs = [_qkv(n) for n in lengths]
    with torch.inference_mode():
        times = medians(*(lambda qkv=qkv: regard.attend(*qkv, who) for qkv in inputs), rounds=5)  # type: ignore[misc]
    code = """
import regard
q, k, v = torch.randn(3, 1, 12, {n}, 64)
regard.attend(q[:, :, :512], k[:, :, :512], v[:, :, :512], regard.mask.window(256))
regard.attend(q, k, v, regard.mask.window(256))
"""
    memory = [peak_mb(code.format(n=n)) for n in lengths]
    for n, taken, mb in zip(lengths[1:], times[1:], memory[1:], strict=True):
        per_token = taken / times[0] * lengths[0] / n
        yield Row(
            f"window {width}, {n:,} tokens", "itself at 4,096, per token", f"{per_token:.2f}x its time", "about 1x", ""
        )
        yield Row("", "", f"{mb / memory[0] * lengths[0] / n:.2f}x its memory", "about 1x", "")


def packing() -> Iterator[Row]:
    """64 documents end to end, against the same documents padded to one length."""
    even = torch.linspace(0, 1, 64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    yield _packed("evenly spread", (16 + 496 * even).round().long())
    yield _packed("short ones the commonest, log-even", (16 * 32**even).round().long())


@torch.inference_mode()
def _packed(spread: str, lengths: Tensor) -> Row:
    q, k, v = _qkv(int(lengths.sum()))
    who = mask.documents(torch.arange(64).repeat_interleave(lengths))
    padded = torch.randn(3, 64, HEADS, 512, WIDTH)
    real = (torch.arange(512) < lengths[:, None])[:, None, None, :]
    return _row(
        f"64 packed documents of 16 to 512 tokens, {spread}",
        lambda: regard.attend(q, k, v, who),
        "padded batch, fused kernel",
        lambda: F.scaled_dot_product_attention(*padded, attn_mask=real),
        flops=4 * HEADS * WIDTH * int((lengths**2).sum()),
        bar="2.5x",
    )


@torch.inference_mode()
def predicates() -> Iterator[Row]:
    """A mask that is a function, against the same mask as a tensor."""
    tokens = 16_384
    q, k, v = _qkv(tokens)
    cases = {
        "every 64th token and the last 256": "lambda i, j: (j <= i) & ((i - j < 256) | (j % 64 == 0))",
        "every other token": "lambda i, j: (i - j) % 2 == 0",
    }
    for name, text in cases.items():
        who = mask.where(eval(text))
        dense = who.dense(tokens, tokens)
        yield _row(
            f"predicate mask ({name}), {tokens:,} tokens",
            lambda who=who: regard.attend(q, k, v, who),  # type: ignore[misc]
            "fused kernel with a dense mask in memory",
            lambda dense=dense: F.scaled_dot_product_attention(q, k, v, attn_mask=dense),  # type: ignore[misc]
            flops=4 * HEADS * WIDTH * int(dense.sum()),
            bar="1.0x",
            rounds=3,
        )
        setup = f"""
import regard, torch.nn.functional as F
q, k, v = torch.randn(3, 1, 12, {tokens}, 64)
who = regard.mask.where({text})
regard.attend(q[:, :, :512], k[:, :, :512], v[:, :, :512], who)
"""
        ours = peak_mb(setup + "regard.attend(q, k, v, who)")
        theirs = peak_mb(setup + "F.scaled_dot_product_attention(q, k, v, attn_mask=who.dense(q.shape[2], k.shape[2]))")
        yield Row("", "", f"{ours / theirs:.3f}x its peak memory", "under 0.1x", "")
