"""Recordings that no model made: random maps under any paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import regard
from regard.lens import AttentionMap, OutputSample, Recording


def random_map(
    queries=6,
    keys=6,
    *,
    batch=1,
    heads=2,
    kv_heads=None,
    d_value=5,
    seed=0,
    dtype=torch.float32,
    sampled=True,
    **options: Any,
) -> AttentionMap:
    """A map of random tensors, by default verified by the first and the last row of its first text's output."""
    g = torch.Generator().manual_seed(seed)
    sizes = (heads, queries, 8), (kv_heads or heads, keys, 8), (kv_heads or heads, keys, d_value)
    q, k, v = (torch.randn(batch, *size, generator=g).to(dtype) for size in sizes)
    sample = None
    if sampled:
        of_attend = {name: value for name, value in options.items() if name not in ("dropout", "ensure_unchanged")}
        with torch.no_grad():
            output = regard.attend(q, k, v, **of_attend)
        b, i = torch.zeros(2, dtype=torch.long), torch.tensor([0, queries - 1])
        sample = OutputSample(b, i, output[b, :, i])
    return AttentionMap(q, k, v, sample=sample, kernel="fused", **options)


def refuse() -> None:
    """What a map calls whose tensors were changed."""
    raise RuntimeError("changed in place")


def answers(m: AttentionMap) -> list[torch.Tensor]:
    """What a map answers to every question that it takes."""
    groups = [0, *[1] * (m.shape[3] - 1)]
    statistics = [m.entropy(), m.received(), m.mass(groups), *m.distance(), *m.top(2), m.pooled(2, 2), m.lse]
    if m.v is not None:
        grad = torch.ones(*m.shape[:3], m.v.shape[-1])
        statistics += [m.output(), *m.attribution(grad), m.edge_attribution(grad, [-1]), m.without_key([-1], [0])]
        statistics += [m.value_weighted(), *m.group_outputs(groups)]
    return [m.dense(), m[0], *statistics]


def make_recording(*entries: Any, tokens: Sequence[Any] | None = None, kind: str = "self") -> Recording:
    """A recording of maps, ``h.0.attn``, ``h.1.attn``, ..., or of (path, map, kind, layer)."""
    recording = Recording()
    for n, entry in enumerate(entries):
        path, m, of_kind, layer = entry if isinstance(entry, tuple) else (f"h.{n}.attn", entry, kind, n)
        recording.add(path, m, shape=tuple(m.shape), mask=m.mask, kernel=m.kernel, kind=of_kind, layer=layer)
    if tokens is not None:
        recording.label(*tokens)
    return recording


def planted_map(*heads: list[tuple[int, float]], **options: Any) -> AttentionMap:
    """A map whose heads attend as they are told: for each query the key, and how much of its weight goes there."""
    count, width = len(heads[0]), max(32, len(heads[0]))
    k = torch.eye(count, width)[None, None].expand(1, len(heads), -1, -1)
    q = torch.zeros(1, len(heads), count, width)
    for head, row in enumerate(heads):
        for query, (key, share) in enumerate(row):
            # exp(score) / (exp(score) + the others) = share
            q[0, head, query, key] = torch.tensor(share * max(count - 1, 1) / (1 - share)).log()
    return AttentionMap(q, k, k, scale=1.0, **options)


def to(*keys: int, share: float = 0.9) -> list[tuple[int, float]]:
    """A head for `planted_map`: the key of each query."""
    return [(key, share) for key in keys]
