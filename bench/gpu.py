"""Attention, watching and training on a GPU in bfloat16, against PyTorch's own ways: 12 heads of 64, one sequence.

``python -m bench.gpu`` writes the table of BENCHMARKS.md, with the name of the GPU. It needs less than the other
benchmarks: PyTorch, transformers, and what `regard` itself needs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

import regard
from bench.attention import HEADS, WIDTH
from bench.table import Row, write
from bench.training import gpt2_updates
from regard import mask
from regard.lens.maps.map import AttentionMap
from regard.transformer import Config, Encoder

FUSED = "F.scaled_dot_product_attention"
FLEX = "FlexAttention, compiled, its block mask made before"


def gpu_medians(*calls: Callable[[], object], rounds: int = 9) -> list[float]:
    """Median seconds of each, by events of the GPU, in turn; each is run three times before."""
    for call in calls:
        for _ in range(3):
            call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(3):
                call()
            end.record()
            torch.cuda.synchronize()
            taken.append(start.elapsed_time(end) / 3000)
    return [statistics.median(taken) for taken in times]


def gpu_peak(call: Callable[[], object]) -> float:
    """MiB on the GPU that a call takes above what was there."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _qkv(tokens: int, *, gradient: bool = False, heads: int = HEADS) -> list[Tensor]:
    shape = 1, heads, tokens, WIDTH
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=gradient) for _ in range(3)]


def _rows(case: str, ours: Callable[[], object], rivals: dict[str, Callable[[], object]]) -> Iterator[Row]:
    mine, *theirs = gpu_medians(ours, *rivals.values())
    for against, seconds in zip(rivals, theirs, strict=True):
        yield Row(case, against, f"{seconds / mine:.2f}x", "", f"{1e6 * mine:,.0f} us")


@torch.inference_mode()
def gpu_attending() -> Iterator[Row]:
    """Full and causal attention."""
    for tokens in (128, 2048, 16_384):
        q, k, v = _qkv(tokens)
        for kind, who in (("full", None), ("causal", mask.causal())):
            rival = partial(F.scaled_dot_product_attention, q, k, v, is_causal=who is not None)
            yield from _rows(
                f"{kind} attention, {tokens:,} tokens", partial(regard.attend, q, k, v, who), {FUSED: rival}
            )


def gpu_masks() -> Iterator[Row]:
    """A window and functions, against FlexAttention by hand and the fused kernel with a dense mask."""
    tokens = 16_384
    cases = {
        "window 256": (mask.window(256), lambda b, h, i, j: (j <= i) & (i - j < 256)),
        "every 64th and the last 256": (
            mask.where(lambda i, j: (j <= i) & ((i - j < 256) | (j % 64 == 0))),
            lambda b, h, i, j: (j <= i) & ((i - j < 256) | (j % 64 == 0)),
        ),
        "every other token": (
            mask.where(lambda i, j: (i - j) % 2 == 0),
            lambda b, h, i, j: (i - j) % 2 == 0,
        ),
    }
    flex = torch.compile(flex_attention)
    for name, (who, predicate) in cases.items():
        q, k, v = _qkv(tokens)
        dense = who.dense(tokens, tokens, device="cuda")
        blocks = create_block_mask(predicate, None, None, tokens, tokens, device="cuda")
        by_flex = partial(flex, block_mask=blocks)
        ours = partial(regard.attend, q, k, v, who)
        with torch.inference_mode():
            rivals = {
                FLEX: partial(by_flex, q, k, v),
                "the fused kernel with a dense mask": partial(F.scaled_dot_product_attention, q, k, v, attn_mask=dense),
            }
            yield from _rows(f"{name}, {tokens:,} tokens, forward", ours, rivals)
            memory = gpu_peak(ours)
            yield Row("its memory", "a dense mask: 256 MiB", f"{memory:,.0f} MiB")
        leaves = _qkv(tokens, gradient=True)

        def back(output: Callable[..., Tensor], leaves: list[Tensor] = leaves) -> None:
            torch.autograd.grad(output(*leaves).sum(), leaves)

        rivals = {FLEX: partial(back, by_flex)}
        mine = partial(back, lambda q, k, v, who=who: regard.attend(q, k, v, who))
        yield from _rows(f"{name}, {tokens:,} tokens, forward and backward", mine, rivals)


@torch.inference_mode()
def gpu_packed() -> Iterator[Row]:
    """64 documents end to end."""
    even = torch.linspace(0, 1, 64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    lengths = (16 + 496 * even).round().long()
    q, k, v = _qkv(int(lengths.sum()))
    who = mask.documents(torch.arange(64).repeat_interleave(lengths))
    bounds = F.pad(lengths.cumsum(0), (1, 0)).to(device="cuda", dtype=torch.int32)
    rows = [t[0].transpose(0, 1).contiguous() for t in (q, k, v)]
    padded = [torch.randn(64, HEADS, 512, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    real = (torch.arange(512) < lengths[:, None])[:, None, None, :].cuda()
    rivals = {
        "padded batch, fused kernel": partial(F.scaled_dot_product_attention, *padded, attn_mask=real),
        "varlen_attn, its bounds made before": lambda: varlen_attn(*rows, bounds, bounds, 512, 512),
    }
    yield from _rows("64 packed documents of 16 to 512 tokens", partial(regard.attend, q, k, v, who), rivals)


@torch.inference_mode()
def gpu_watching() -> Iterator[Row]:
    """A forward pass, watched and not; the questions to one layer of a long text."""
    model = Encoder(Config(vocab_size=1000, d_model=768, num_layers=12, num_heads=12, d_ff=3072))
    model = model.eval().to("cuda", torch.bfloat16)
    ids = torch.randint(1000, (1, 4096), generator=torch.Generator().manual_seed(0)).cuda()

    def watched() -> object:
        with regard.watch(model):
            return model(ids)

    alone = partial(model, ids)
    if not torch.equal(alone(), watched()):
        raise AssertionError("watching changed the output")
    plain, seen = gpu_medians(alone, watched)
    yield Row("watched: 12 layers of 768, 4,096 tokens", "forward alone", f"{seen / plain:.2f}x time")
    for tokens, heads in ((32_768, HEADS), (131_072, 1)):
        q, k, v = _qkv(tokens, heads=heads)
        fused = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
        groups = torch.arange(tokens) % 64
        asked: dict[str, Callable[[AttentionMap], object]] = {
            "entropy": AttentionMap.entropy,
            "received": AttentionMap.received,
            "all six in one pass": lambda m, groups=groups: m.ask(
                "entropy", "received", "distance", mass=groups, top=8, pooled=(512, 512)
            ),
        }
        for name, question in asked.items():

            def call(q: Tensor = q, k: Tensor = k, v: Tensor = v, question: Callable = question) -> object:
                return question(AttentionMap(q, k, v, mask.causal()))

            base, taken = gpu_medians(fused, call, rounds=3)
            case = f"{name}, causal, {tokens:,} tokens, {heads} heads"
            dense = heads * tokens**2 * 2 / 2**30
            memory = f"{gpu_peak(call) / 1024:.2f} GiB, the dense map {dense:,.0f}"
            yield Row(case, "one fused call", f"{taken / base:.1f}x time", "", f"{1e3 * taken:,.0f} ms, {memory}")


def gpu_updates() -> Iterator[Row]:
    """Updates of GPT-2 124M under bfloat16 autocast."""
    texts, tokens = 16, 1024
    made = gpt2_updates(texts, tokens, "cuda", half=True)
    mine, its, plains = gpu_medians(made.ours, made.transformers, made.plain, rounds=5)
    rate = f"{texts * tokens / mine:,.0f} tokens a second"
    for against, seconds in (("transformers, sdpa", its), ("nanoGPT's design with SDPA", plains)):
        case = f"update of GPT-2 124M shape, {texts} x {tokens} tokens, bfloat16"
        yield Row(case, against, f"{seconds / mine:.2f}x", "", rate)


def main() -> None:
    """Measure, print, and write the table."""
    if not torch.cuda.is_available():
        raise SystemExit("python -m bench.gpu needs a GPU: torch.cuda.is_available() is False")
    rows = []
    for measure in (gpu_attending, gpu_packed, gpu_watching, gpu_updates, gpu_masks):
        for row in measure():
            print(f"{row.case:60} {row.speed:>14}  {row.against}  {row.over_the_floor}", flush=True)
            rows.append(row)
    machine = f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}."
    write("gpu", machine, rows)


if __name__ == "__main__":
    main()
