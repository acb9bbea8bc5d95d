"""What `regard see --terminal` draws of some heads, as facts: their queries, and the strongest keys of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.files import write_json
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import AttentionSummary
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.figures.cells import map_tokens

MAX_QUERIES = 40
"""The most queries that are listed with their keys."""

TOP_KEYS, TOP_KEYS_OF_ONE = 3, 12
"""The number of keys of each query; of one chosen query."""


@dataclass(frozen=True, eq=False)
class DrawnHeads:
    """Some heads of a recording, in the order in which they are drawn."""

    recording: Recording
    title: str
    model: str
    heads: Sequence[tuple[str, int]]
    """Paths, and indices of heads in their maps."""
    query: int | None
    """The only query that is listed; None for the first ones."""

    def to_dict(self) -> dict[str, Any]:
        """The heads, their queries and keys and weights."""
        return {
            "title": self.title,
            "model": self.model,
            "heads": [_head_facts(self.recording.entry(path), head, self.query) for path, head in self.heads],
        }

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON, by an atomic write.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_dict(), path)


def strongest_keys(
    m: AttentionMap | AttentionSummary, head: int, rows: range, count: int, batch: int = 0
) -> tuple[list[list[float]], list[list[int]]]:
    """The largest weights of some rows and their keys, at most as many as there are; key -1 for a weight of 0."""
    count = min(count, m.shape[3])
    if isinstance(m, AttentionSummary):
        top = m.top(min(count, m.answers["top.weights"].shape[-1]))
        weights, keys = (t[batch, head, rows.start : rows.stop] for t in top)
        return weights.tolist(), keys.tolist()
    weights, keys = m[batch, head, rows.start : rows.stop].topk(count)
    return weights.tolist(), torch.where(weights == 0, -1, keys).tolist()


def head_type_of(entry: RecordingEntry, head: int) -> str | None:
    """The type of a head; None where queries or keys are NaN or infinite."""
    try:
        return entry.head_types().names[head]
    except ValueError:
        return None


def _head_facts(entry: RecordingEntry, head: int, query: int | None) -> dict[str, Any]:
    m = entry.map()
    names = map_tokens(m, 0)
    rows = range(min(m.shape[2], MAX_QUERIES)) if query is None else range(query, query + 1)
    weights, keys = strongest_keys(m, head, rows, TOP_KEYS if query is None else TOP_KEYS_OF_ONE)
    return {
        "path": entry.path,
        "kind": entry.kind,
        "layer": entry.layer,
        "head": entry.head_numbers[head],
        "head_type": head_type_of(entry, head),
        "error": m.error if math.isfinite(m.error) else None,
        "verified": m.verified,
        "queries": [
            {
                "query": row,
                "token": names and names[0][row],
                "keys": [
                    {"key": key, "token": names and names[1][key], "weight": weight if math.isfinite(weight) else None}
                    for weight, key in zip(row_weights, row_keys, strict=True)
                    if key >= 0
                ],
            }
            for row, row_weights, row_keys in zip(rows, weights, keys, strict=True)
        ],
    }
