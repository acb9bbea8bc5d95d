"""The facts of a page apart from its payload: texts, attentions and heads, as static/core/data.js reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard._shapes import Float
from regard.lens.maps.head_types import HeadTypes, detect_heads, is_delimiter
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.patches import ImagePatches
from regard.lens.maps.streaming import TopWeights
from regard.lens.maps.summary import SUMMARY_CELLS, SUMMARY_TOP_K, AttentionSummary
from regard.lens.maps.tokens import Tokens, text_tokens
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.html.patches import name_patches

LARGE_MAP_CELLS = 512
"""The most rows and columns of the pooled map of a large head with a payload, which the page shows first."""

THUMBNAIL_CELLS = 32
"""The most rows and columns of the pooled map of a head whose payload is in the page."""

MAX_PAIRS = 12
"""The most pairs of tokens that are listed for a head, the strongest first."""

MAX_DENSE_WEIGHTS = 2**22
"""The weights of a map with at most this many are all computed, once."""


@dataclass
class AttentionFacts:
    """One attention and its facts."""

    path: str
    entry: RecordingEntry
    source: AttentionMap | AttentionSummary
    """A map has one batch row."""
    statistics: MapStatistics
    facts: dict[str, Any]
    """`Attention` in static/core/data.js, without payload and pooled maps."""


class PageTexts:
    """The texts of a page, each stored once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, tokens: Sequence[str] | None, count: int) -> int:
        """The number of a text; without tokens, the positions are its tokens."""
        text = tuple(str(position) for position in range(count)) if tokens is None else tuple(tokens)
        return self._numbers.setdefault(text, len(self._numbers))

    def tokens(self, number: int) -> tuple[str, ...]:
        """The tokens of a text."""
        return list(self._numbers)[number]

    def facts(self) -> list[dict[str, Any]]:
        """`Facts.texts` in static/core/data.js."""
        return [{"tokens": tokens} for tokens in self._numbers]


class MapStatistics:
    """The statistics of a map or a summary that a page needs.

    All weights of a small map are computed once, since every statistic of a map reads all of its queries and keys anew.

    Args:
        source: a map has one batch row.
        batch: the batch row of a summary; 0 for a map.
    """

    def __init__(self, source: AttentionMap | AttentionSummary, batch: int) -> None:
        self.source, self.batch = source, batch
        self.weights: Float[Tensor, "heads queries keys"] | None = None
        """All weights of a small map, until `release_weights`."""
        if isinstance(source, AttentionMap) and source.shape.numel() <= MAX_DENSE_WEIGHTS:
            self.weights = source[0].float()
        self._pooled: dict[tuple[int, int], Tensor] = {}
        self._asked: dict[str, Any] = {}
        if isinstance(source, AttentionMap) and self.weights is None:
            queries, keys = source.shape[2:]
            cells = min(LARGE_MAP_CELLS, queries), min(LARGE_MAP_CELLS, keys)
            questions = ("entropy", "received", "distance")
            self._asked = source.ask(*questions, top=min(SUMMARY_TOP_K, keys), pooled=cells)
            self._pooled[cells] = self._asked["pooled"][0]

    def release_weights(self) -> None:
        """Free the memory of the weights."""
        self.weights = None

    def entropy(self) -> Float[Tensor, "heads queries"]:
        """The entropy of each row, in nats."""
        w = self.weights
        return self.source.entropy()[self.batch] if w is None else torch.special.entr(w).sum(-1)

    def distance(self, query_offset: int) -> Float[Tensor, "heads queries"]:
        """The mean distance from each query back to its keys; 0 where there is nothing to attend to.

        Args:
            query_offset: position of query 0 among the keys.
        """
        w = self.weights
        if w is None:
            return (self._asked["distance"] if self._asked else self.source.distance()).mean[self.batch]
        query, key = (torch.arange(size, device=w.device, dtype=w.dtype) for size in w.shape[1:])
        total = w.sum(-1)
        return (query_offset + query - (w @ key) / total).where(total > 0, 0.0)

    def top(self, k: int) -> TopWeights:
        """The largest weights of each row and their keys, (heads, queries, k)."""
        if self.weights is None:
            top = self._asked["top"] if self._asked else self.source.top(k)
            return TopWeights(top.weights[self.batch], top.keys[self.batch])
        return TopWeights(*self.weights.topk(k))

    def pooled(self, cells: int) -> Float[Tensor, "heads rows columns"]:
        """The map in at most ``cells`` rows and columns; see `AttentionMap.pooled`."""
        largest = min(cells, SUMMARY_CELLS) if isinstance(self.source, AttentionSummary) else cells
        queries, keys = self.source.shape[2:]
        size = min(largest, queries), min(largest, keys)
        if size not in self._pooled:
            self._pooled[size] = self._pool(*size)
        return self._pooled[size]

    def _pool(self, rows: int, columns: int) -> Tensor:
        """From a finer pooled map whose cells these cells contain; else from the weights; else from the map."""
        queries, keys = self.source.shape[2:]
        for (fine_rows, fine_columns), fine in self._pooled.items():
            if fine_rows % rows == 0 and fine_columns % columns == 0:
                sums = fine * _cell_sizes(queries, fine_rows, fine)[:, None]
                sums = sums.reshape(-1, rows, fine_rows // rows, columns, fine_columns // columns)
                coarse: Tensor = sums.sum((2, 4)) / _cell_sizes(queries, rows, fine)[:, None]
                return coarse
        if self.weights is None:
            return self.source.pooled(rows, columns)[self.batch]
        w = self.weights
        query_cells, key_cells = _cell_matrix(queries, rows, w), _cell_matrix(keys, columns, w)
        return (query_cells / query_cells.sum(1, keepdim=True)) @ w @ key_cells.T


def _cell_sizes(size: int, cells: int, like: Tensor) -> Tensor:
    """The number of positions in each cell."""
    return torch.tensor([n * size // cells for n in range(cells + 1)], device=like.device).diff().to(like.dtype)


def _cell_matrix(size: int, cells: int, like: Tensor) -> Tensor:
    """(cells, size): 1 where a position is in a cell, else 0."""
    cell = torch.arange(cells, device=like.device).repeat_interleave(_cell_sizes(size, cells, like).long())
    return torch.nn.functional.one_hot(cell, cells).T.to(like.dtype)


def group_names(recording: Recording) -> dict[str, str]:
    """For each path the group of its attention: "encoder", "decoder", "cross" or "self"; a group has one per layer."""
    stacks: dict[tuple[str, str], list[str]] = {}
    for path in recording:
        entry = recording.entry(path)
        stacks.setdefault((entry.stack, entry.kind), []).append(path)
    by_stack = {(stack, kind): _short_group_name(stack, kind) for stack, kind in stacks}
    names = list(by_stack.values())
    for (stack, kind), name in by_stack.items():
        if names.count(name) > 1:
            by_stack[stack, kind] = f"{kind or 'attention'} of {stack or 'the model'}"
    return {path: by_stack[key] for key, paths in stacks.items() for path in paths}


def _short_group_name(stack: str, kind: str) -> str:
    if kind == "cross":
        return "cross"
    parts = stack.partition("#")[0].split(".")
    return next((part for part in reversed(parts) if part in ("encoder", "decoder")), "self")


def attention_facts(recording: Recording, path: str, group: str, batch: int, texts: PageTexts) -> AttentionFacts:
    """Compute the facts of one attention.

    Raises:
        RuntimeError: its tensors were changed since the model ran.
        ValueError: it has no queries or no keys; its weights are NaN or infinite.
        IndexError: there is no such batch row.
    """
    entry = recording.entry(path)
    if 0 in entry.shape:
        raise ValueError(f"there is nothing in a map of shape {entry.shape} (batch, heads, queries, keys)")
    source, row = entry.map(), batch
    if isinstance(source, AttentionMap):
        source, row = source.select(batch), 0
    statistics = MapStatistics(source, row)  # the entropy, of which it makes sure, helps to find the types
    types = (
        source.head_types()
        if isinstance(source, AttentionSummary)
        else detect_heads(source, cross=entry.kind == "cross")
    )
    _, heads, queries, keys = source.shape
    cross = entry.kind == "cross" or queries > keys
    query_offset = 0 if cross else keys - queries
    tokens = source.tokens
    key_text = texts.number(_tokens_of_row(tokens and tokens[1], entry.patches.keys, row, batch), keys)
    # Without tokens, the queries are the last positions and share the keys' text.
    has_query_text = tokens or cross
    query_text = (
        texts.number(_tokens_of_row(tokens and tokens[0], entry.patches.queries, row, batch), queries)
        if has_query_text
        else key_text
    )
    entropy, distance = statistics.entropy().mean(-1), statistics.distance(query_offset).mean(-1)
    if not bool((entropy.isfinite() & distance.isfinite()).all()):
        raise ValueError("its weights are not finite")
    numbers = entry.head_numbers
    pairs = _strongest_pairs(statistics, texts.tokens(key_text), None if cross else query_offset)
    facts = {
        "path": path,
        "group": group,
        "kind": entry.kind or "self",
        "layer": entry.layer or 0,
        "queries": queries,
        "keys": keys,
        "query_offset": query_offset,
        "query_text": query_text,
        "key_text": key_text,
        "mask": entry.mask,
        "kernel": entry.kernel,
        "max_error": source.error if math.isfinite(source.error) else None,
        "verified": source.verified,
        "max_weight_error": 0.0,
        "scale": 1.0,
        "softcap": None,
        "dropout": 0.0,
        "d_key": 0,
        "d_value": 0,
        "first_key": None,
        "end_key": None,
        "kv_heads": [],
        "heads": [
            {
                "number": numbers[head],
                "head_type": types.names[head],
                "head_type_scores": _head_type_scores(types, head),
                "entropy": float(entropy[head]),
                "distance": None if cross else float(distance[head]),
                "first_token_share": _head_type_scores(types, head)["attention sink"],
                "pairs": pairs[head],
                "pooled": None,
                "max_pooled": 0.0,
                "payload": None,
            }
            for head in range(heads)
        ],
    }
    if isinstance(source, AttentionMap):
        facts |= {
            "scale": float(source.scale),
            "softcap": None if source.softcap is None else float(source.softcap),
            "dropout": float(source.dropout),
            "d_key": source.q.shape[-1],
            "d_value": 0 if source.v is None else source.v.shape[-1],
        }
    return AttentionFacts(path, entry, source, statistics, facts)


def _tokens_of_row(tokens: Tokens | None, patches: tuple[ImagePatches, ...], row: int, batch: int) -> list[str] | None:
    """The tokens of a row of a source, which is this batch row of the attention."""
    return name_patches(text_tokens(tokens, row), patches, batch) if tokens else None


def _head_type_scores(types: HeadTypes, head: int) -> dict[str, float | None]:
    """The score of a head for each type; None where no row could show it."""
    scores = {name: math.nan if score is None else float(score[head]) for name, score in types.scores.items()}
    return {name: None if math.isnan(score) else score for name, score in scores.items()}


def _strongest_pairs(
    statistics: MapStatistics, tokens: Sequence[str], query_offset: int | None
) -> list[list[dict[str, Any]]]:
    """The strongest pairs of each head, without the first key, delimiters, and pairs of a token with itself."""
    top = statistics.top(min(SUMMARY_TOP_K, len(tokens)))
    weights, keys = top.weights.cpu(), top.keys.cpu()
    uninformative = torch.tensor([key == 0 or is_delimiter(token) for key, token in enumerate(tokens)] + [True])
    excluded = uninformative[keys]  # key -1 stands for no key, and selects the last
    if query_offset is not None:
        excluded |= keys == torch.arange(keys.shape[1])[:, None] + query_offset
    best = weights.masked_fill(excluded, -1.0).flatten(1).topk(min(MAX_PAIRS, weights[0].numel()))
    columns = (best.values, best.indices // keys.shape[2], keys.flatten(1).gather(1, best.indices))
    return [
        [{"query": query, "key": key, "weight": weight} for weight, query, key in zip(*head, strict=True) if weight > 0]
        for head in zip(*(t.tolist() for t in columns), strict=True)
    ]
