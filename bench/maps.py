"""Statistics of an attention map against one fused call of that layer: 12 heads of 64, float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from bench.attention import HEADS, WIDTH
from bench.table import Row
from bench.timing import medians, peak_mb
from regard import mask
from regard.lens.maps.map import AttentionMap

AGAINST = "one fused call"


@torch.inference_mode()
def statistics(tokens: int = 8192, rounds: int = 5) -> Iterator[Row]:
    """Time of each statistic by the time of the layer's own attention; below 1 is faster."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    q, k, v = (torch.randn(1, HEADS, tokens, WIDTH) for _ in range(3))
    groups = torch.arange(tokens) % 64
    for kind, who in (("full", None), ("causal", mask.causal())):
        # `watch` has the lse that the model's own kernel computed.
        _, lse = flash(q, k, v, 0.0, who is not None)
        m = AttentionMap(q, k, v, who, lse=lse)
        rows: list[tuple[str, str, Callable[[], object]]] = [
            ("entropy", "1.3x", partial(_entropy, m, lse)),
            ("mass on 64 groups", "1.3x", partial(m.mass, groups)),
            ("distance", "1.3x", m.distance),
            ("received", "1.5x", partial(_received, m, lse)),
            ("received, lse not known", "", partial(_received, m, None)),
            ("top(8)", "4x", partial(m.top, 8)),
            ("pooled to 512 x 512", "6x", partial(m.pooled, 512, 512)),
        ]
        fused = partial(F.scaled_dot_product_attention, q, k, v, is_causal=who is not None)
        base, *times = medians(fused, *(statistic for _, _, statistic in rows), rounds=rounds, warm=rounds > 1)
        for (name, bar, _), taken in zip(rows, times, strict=True):
            yield Row(f"{name}, {kind}, {tokens:,} tokens", AGAINST, f"{taken / base:.2f}x time", bar)


def _entropy(m: AttentionMap, lse: torch.Tensor) -> object:
    """Entropies, of a map without cached answers."""
    return AttentionMap(m.q, m.k, m.v, m.mask, lse=lse).entropy()


def _received(m: AttentionMap, lse: torch.Tensor | None) -> object:
    """Received, of a map without cached answers."""
    return AttentionMap(m.q, m.k, m.v, m.mask, lse=lse).received()


LAYER = """
from regard import mask
from regard.lens.maps.map import AttentionMap
q, k, v = (torch.randn(1, {heads}, {tokens}, 64) for _ in range(3))
small = AttentionMap(q[:, :, :256], k[:, :, :256], v[:, :, :256], mask.causal())
small.entropy(), small.received(), small.mass([0] * 256), small.distance(), small.top(8), small.pooled(9, 9)
m = AttentionMap(q, k, v, mask.causal())
{statements}
"""


def long_maps() -> Iterator[Row]:
    """The same at 32,768 tokens, once, and the memory of a process above q, k and v."""
    yield from statistics(32768, rounds=1)
    groups = "[n % 64 for n in range(32768)]"
    every = f"(m.entropy(), m.received(), m.mass({groups}), m.distance(), m.top(8), m.pooled(512, 512))"
    peak = peak_mb(LAYER.format(heads=HEADS, tokens=32768, statements=every))
    yield Row("every statistic, causal, 32,768 tokens", "the dense map: 51.5 GB", f"{peak / 954:.2f} GB", "2 GB")
    peak = peak_mb(LAYER.format(heads=1, tokens=131072, statements="(m.entropy(), m.received())"))
    yield Row(
        "entropy and received, one head, 131,072 tokens", "the dense map: 68.7 GB", f"{peak / 954:.2f} GB", "1 GB"
    )
