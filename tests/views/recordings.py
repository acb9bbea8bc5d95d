"""Recordings that several views are tested on."""

from functools import cache
from typing import Any

import torch

from regard.lens import AttentionMap, AttentionSummary, Recording
from regard.lens.text.run import run
from weights import RIVER, minilm


@cache
def river() -> Recording:
    """What every head of the default model gives in RIVER; not to be changed."""
    return run(RIVER, minilm()).recording


def random_map(queries: int, keys: int, *, heads: int = 2, batch: int = 1, **options: Any) -> AttentionMap:
    """A map whose weights differ clearly, without values."""
    q, k = torch.randn(batch, heads, queries, 16), torch.randn(batch, 1, keys, 16)
    return AttentionMap(2 * q, k, None, **options)


def recorded(*maps: AttentionMap | AttentionSummary, **entry: Any) -> Recording:
    """Maps as the layers of a recording; `entry` holds what else is said of each, such as `kind` or `heads`."""
    recording = Recording()
    for layer, m in enumerate(maps):
        facts = {"path": f"layers.{layer}", "kind": "self", "layer": layer, "mask": getattr(m, "mask", None), **entry}
        recording.add(facts.pop("path"), m, shape=tuple(m.shape), kernel="", **facts)
    return recording
