"""How much each part looks or is looked at: weights of the query that the metric reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.effects.metrics import Metric
from regard.lens.effects.parts import EdgeParts
from regard.lens.effects.subject import TextArguments
from regard.lens.maps.attribution import value_norms
from regard.lens.maps.map import AttentionMap
from regard.lens.recording.entry import RecordingEntry


@dataclass(frozen=True)
class PartAttention:
    """The attention of one text, in the shape of its effects."""

    values: Tensor
    name: str
    """Which attention it is, in words."""


def position_in(count: int, position: int | None, valid: Tensor | None) -> int:
    """A position among so many queries, counted as the metric counts it: without padding, -1 the last."""
    positions = range(count) if valid is None or int(valid[-1]) >= count else valid.tolist()
    wanted = -1 if position is None else position
    return int(positions[wanted]) if -len(positions) <= wanted < len(positions) else count - 1


def query_weights(entry: RecordingEntry, text: TextArguments, metric: Metric, *, weighted: bool) -> tuple[Tensor, int]:
    """The weights of the query that the metric reads, (heads, keys); and the query.

    Args:
        entry: the attention.
        text: what it read.
        metric: names the position.
        weighted: whether each weight is multiplied by the length of the value that it carries, |w_ij v_j| (Kobayashi
            et al. 2020, "Attention is Not Only a Weight").
    """
    m, position = map_of(entry), metric.position
    reads_keys = entry.kind != "cross" and m.shape[2] == len(text.tokens) != len(text.query_tokens)
    query = position_in(m.shape[2], -1 if reads_keys else position, text.valid_keys if reads_keys else text.valid)
    return _row(m, query, weighted), query


def of_heads(
    entries: Sequence[RecordingEntry], text: TextArguments, metric: Metric, *, whole: bool, weighted: bool = False
) -> PartAttention:
    """The attention of every head from the query that the metric reads, or its mean over the heads of an attention.

    It goes to the first token that the metric names and that stands in the text; else to the one token that gets most,
    apart from the first, which many heads use as a sink, and the query itself.
    """
    named = named_positions(text, metric)
    rows = []
    for entry in entries:
        weights, query = query_weights(entry, text, metric, weighted=weighted)
        ids = text.ids if entry.kind != "cross" and weights.shape[1] == _length(text.ids) else text.key_ids
        if named and ids is not None and weights.shape[1] == len(ids):
            places = (ids == named[1]).nonzero()[:, 0].to(weights.device)
            rows.append(weights[:, places].sum(-1) if len(places) else weights.new_full((len(weights),), torch.nan))
            continue
        weights = weights.clone()
        weights[:, 0] = 0.0
        if entry.kind != "cross" and query < weights.shape[1]:
            weights[:, query] = 0.0
        rows.append(weights.amax(-1))
    most = max(map(len, rows))
    heads = torch.stack([torch.nn.functional.pad(row, (0, most - len(row)), value=torch.nan) for row in rows]).cpu()
    to = f"to {named[0]}" if named else "to the token that gets most, but the first and itself"
    of = "mean attention of its heads" if whole else "attention"
    return PartAttention(heads.nanmean(1) if whole else heads, f"{of} from {_query_name(metric)} {to}")


def of_tokens(
    entries: Sequence[RecordingEntry], count: int, text: TextArguments, metric: Metric, *, weighted: bool = False
) -> PartAttention:
    """The attention that each token gets from the query that the metric reads, mean over all layers and heads."""
    total = torch.zeros(count, dtype=torch.float64)
    heads = 0
    for entry in entries:
        weights, _ = query_weights(entry, text, metric, weighted=weighted)
        total += weights.sum(0).cpu()
        heads += len(weights)
    return PartAttention(total / heads, f"attention from {_query_name(metric)}, mean over all layers and heads")


def of_edges(edges: EdgeParts, *, weighted: bool = False) -> PartAttention:
    """The attention of each query to each group of keys, mean over the heads and layers of a window."""
    values = torch.zeros(edges.shape, dtype=torch.float64)
    rows = [
        torch.stack([_row(map_of(entry), query, weighted).mean(0).cpu() for query in edges.queries])
        for entry in edges.entries
    ]
    for w, window in enumerate(edges.windows):
        mean = torch.stack([rows[n] for n in window]).mean(0)
        for g, group in enumerate(edges.groups):
            values[w, :, g] = mean[:, list(group)].sum(-1)
    return PartAttention(values, "attention from the query to the keys, mean over the heads of the layers")


def named_positions(text: TextArguments, metric: Metric) -> tuple[str, int] | None:
    """The first token that the metric names and that stands in the text: its name and its id."""
    known = [ids for ids in (text.key_ids, text.ids) if ids is not None]
    for token in metric.tokens:
        assert isinstance(token, int)
        for ids, tokens in zip(known, (text.tokens, text.query_tokens), strict=False):
            places = (ids == token).nonzero()[:, 0].tolist()
            if places:
                return (repr(tokens[places[0]]) if tokens else f"token {token}"), token
    return None


def _query_name(metric: Metric) -> str:
    return "the last token" if metric.position in (None, -1) else f"position {metric.position}"


def _length(ids: Tensor | None) -> int:
    return -1 if ids is None else len(ids)


def map_of(entry: RecordingEntry) -> AttentionMap:
    """The map of an attention that was recorded with keep="maps".

    Raises:
        ValueError: a summary, where a model has too many weights of eager attention to keep.
    """
    m = entry.map()
    if not isinstance(m, AttentionMap):
        raise ValueError(f"{entry.path}: {m.refusal('effect')}")
    return m


def _row(m: AttentionMap, query: int, weighted: bool) -> Tensor:
    weights = m[0, :, query].double()
    return weights * value_norms(m, None)[0].double() if weighted else weights
