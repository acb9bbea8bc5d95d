"""The statistics of an overview: every head of a layer, the words that received most attention, the keys of a word."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.lens.maps.map import AttentionMap
from regard.lens.recording.entry import RecordingEntry
from regard.lens.text.overview import AttendedKey, HeadOverview, LayerOverview, ReceivedWord, TokenPair, WordAttention
from regard.lens.text.word_selection import TextWord
from regard.lens.text.words import Words

MAX_WORD_KEYS = 12
"""The most keys that are listed for a word."""


def layer_overview(entry: RecordingEntry, m: AttentionMap, queries: Words, keys: Words) -> LayerOverview:
    """Every head of one attention, with the words of its queries and keys."""
    types, distance, entropy = entry.head_types(), m.distance(), m.entropy()
    cross = entry.kind == "cross"
    pairs = _strongest_pairs(m, queries, keys, cross=cross)
    heads = [
        HeadOverview(
            entry.head_numbers[head],
            name,
            {name: None if score is None else float(score[head]) for name, score in types.scores.items()},
            float(entropy[:, head].mean()),
            None if cross else float(distance.mean[:, head].mean()),
            None if cross else float(distance.spread[:, head].mean()),
            pairs[head],
        )
        for head, name in enumerate(types.names)
    ]
    _, _, num_queries, num_keys = m.shape
    return LayerOverview(
        entry.path,
        entry.kind,
        entry.layer or 0,
        num_queries,
        num_keys,
        entry.mask,
        entry.kernel,
        m.error,
        m.verified,
        heads,
    )


def _strongest_pairs(m: AttentionMap, queries: Words, keys: Words, *, cross: bool) -> list[TokenPair]:
    """For each head the largest weight between two tokens of the text, or between any tokens if there are no two."""
    special_keys = [key for key in range(len(keys.tokens)) if not keys.is_text(key)]
    # The special tokens and the query itself do not count, so one key more than those is enough.
    top = m.top(min(m.shape[3], len(special_keys) + 2))
    weights, indices = top.weights[0], top.keys[0]
    special_queries = [not queries.is_text(query) for query in range(len(queries.tokens))]
    excluded = (
        torch.isin(indices, torch.tensor(special_keys, device=m.device))
        | torch.tensor(special_queries, device=m.device)[:, None]
    )
    if not cross:
        own_key = torch.arange(m.shape[2], device=m.device) + m.shape[3] - m.shape[2]
        excluded = excluded | (indices == own_key[:, None])
    pairs = []
    for head in range(m.shape[1]):
        all_excluded = bool(excluded[head].all())
        candidates = weights[head] if all_excluded else weights[head].masked_fill(excluded[head], -1.0)
        query, rank = divmod(int(candidates.argmax()), candidates.shape[-1])
        key = int(indices[head, query, rank])
        pairs.append(TokenPair(queries.tokens[query], query, keys.tokens[key], key, float(weights[head, query, rank])))
    return pairs


def received_words(layers: list[tuple[list[tuple[int, int]], Tensor]], words: Words) -> list[ReceivedWord]:
    """The words by the attention that they received.

    Args:
        layers: of each layer (layer, head) of its heads, and the share of each key as (heads, keys); without sinks a
            head's shares sum to 1.
        words: the words of the keys.
    """
    heads = [head for of_layer, _ in layers for head in of_layer]
    shares = torch.cat([share for _, share in layers]).double()
    groups = words.word_positions()
    in_words = {position for positions in groups for position in positions}
    groups += [[position] for position in range(len(words.tokens)) if position not in in_words]
    received = []
    for positions in groups:
        share = shares[..., positions].sum(-1)
        layer, head = heads[int(share.argmax())]
        received.append(
            ReceivedWord(
                words.surface_form(positions) or words.tokens[positions[0]],
                positions,
                words.is_text(positions[0]),
                float(share.mean()),
                layer,
                head,
                float(share.max()),
            )
        )
    return sorted(received, key=lambda word: -word.received_share)


def word_attention(entry: RecordingEntry, word: TextWord) -> WordAttention:
    """The keys of a word in the most informative of its heads, which belongs to an attention."""
    tokens, top = word.streams.key_words.tokens, word.weights.topk(min(MAX_WORD_KEYS, len(word.weights)))
    keys = [
        AttendedKey(tokens[key], key, weight)
        for weight, key in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        if weight > 0
    ]
    return WordAttention(
        word.word.text,
        word.word.token_index,
        entry.path,
        entry.kind,
        entry.layer or 0,
        entry.head_numbers[word.head],
        word.pattern,
        keys,
        max(0.0, float(word.weights.sum() - top.values.sum())),
    )
