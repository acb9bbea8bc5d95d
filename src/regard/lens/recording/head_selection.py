"""The head of a model that is shown first, and the heads that a user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.lens.maps.head_types import is_delimiter
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.prepared import no_grad_no_autocast
from regard.lens.maps.summary import SUMMARY_TOP_K, AttentionSummary
from regard.lens.maps.tokens import text_tokens
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording

MIN_ROWS, MAX_ROWS, MAX_SAMPLED_WEIGHTS = 16, 64, 2**14
"""Of each head as many rows are computed as have the largest number of weights, within these bounds."""

CHUNK_WEIGHTS = 2**22
"""The number of weights that are computed at once."""


@no_grad_no_autocast
def most_informative_head(recording: Recording) -> tuple[str, int]:
    """The attention, and its head, that is shown first: a head that looks from word to word.

    It is the head with the largest weight on one other word, on average over the rows. The query's own token and its
    neighbours do not count, since a head that attends to neighbours does so whatever they mean; nor do the first token
    and delimiters, which are attention sinks. If no head gives any weight to such a token, all tokens but the query's
    own count, and then all.

    Of a batch, the first text is used. Of a map, some rows at even distances are computed, so that the time is short at
    any length; of a summary, its largest weights are used.

    Returns:
        The path, and the index of the head in the map.

    Raises:
        ValueError: no attention here has a weight above 0.
    """
    for min_distance, only_words in ((2, True), (1, False), (0, False)):
        largest, choice = 0.0, None
        for path in recording:
            weights = _mean_largest_weights(recording.entry(path), min_distance, only_words=only_words)
            for head, weight in enumerate(weights):
                if weight > largest:
                    largest, choice = weight, (path, head)
        if choice is not None:
            return choice
    raise ValueError(f"there is no head to choose: no attention in {recording!r} has a weight above 0")


def resolve_heads(recording: Recording, heads: Sequence[tuple[str | int, int] | int]) -> list[tuple[str, int]]:
    """The paths and map indices of heads that a user names.

    Args:
        recording: the recording that has them.
        heads: (path or layer, head), the numbers those of the model; a layer's number stands for that layer of each
            stack. A number alone is the head of this number in every layer.

    Returns:
        Paths, and the index of each head in its map.

    Raises:
        TypeError: something else.
        KeyError: no such path or layer.
        IndexError: no such head.
    """
    resolved: list[tuple[str, int]] = []
    if not isinstance(heads, list | tuple):
        raise TypeError(f"heads={heads!r}: a list of (layer or path, head), such as [(3, 5), (4, 0)]")
    for pair in heads:
        if isinstance(pair, int) and not isinstance(pair, bool):
            resolved += [(path, _index_of_head(recording.entry(path), pair)) for path in recording]
            continue
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and not any(isinstance(each, bool) for each in pair)
        if not is_pair or not isinstance(pair[0], str | int) or not isinstance(pair[1], int):
            raise TypeError(f"{pair!r} in heads: (layer or path, head), such as (3, 5), or a head of every layer")
        where, number = pair
        paths = [path for path in recording if where in (path, recording.entry(path).layer)]
        if not paths:
            layers = sorted({entry.layer for path in recording if (entry := recording.entry(path)).layer is not None})
            raise KeyError(
                f"there is no layer {where!r} here; there is {', '.join(map(str, layers)) or list(recording)}"
            )
        resolved += [(path, _index_of_head(recording.entry(path), number)) for path in paths]
    return resolved


def _index_of_head(entry: RecordingEntry, number: int) -> int:
    """The index of a head in its map."""
    numbers = list(entry.head_numbers)
    if number not in numbers:
        raise IndexError(f"{entry.path} has no head {number}; it has {', '.join(map(str, numbers))}")
    return numbers.index(number)


def _mean_largest_weights(entry: RecordingEntry, min_distance: int, *, only_words: bool) -> Iterator[float]:
    """For each head, the mean over its rows of the largest weight that counts."""
    m = entry.map()
    _, heads, queries, keys = m.shape
    if 0 in m.shape:
        return
    cross = entry.kind == "cross" or queries > keys
    offset = 0 if cross else keys - queries
    step = -(-queries // min(MAX_ROWS, max(MIN_ROWS, MAX_SAMPLED_WEIGHTS // keys)))
    rows = torch.arange(0, queries, step, device=m.device)
    query_words, key_words = _word_masks(m, offset, cross=cross) if only_words else (None, None)
    top = m.top(min(SUMMARY_TOP_K, keys)) if isinstance(m, AttentionSummary) else None
    chunk_heads = max(1, CHUNK_WEIGHTS // (len(rows) * keys))
    for head in range(heads):
        if top is not None:
            weights, at = top.weights[0, head, rows], top.keys[0, head, rows]
        else:
            if head % chunk_heads == 0:
                chunk = m[0, head : head + chunk_heads, ::step]
            weights, at = chunk[head % chunk_heads], torch.arange(keys, device=m.device).expand(len(rows), -1)
        counts = torch.ones_like(at, dtype=torch.bool) if key_words is None else key_words[at]
        if not cross:
            counts = counts & ((at - offset - rows[:, None]).abs() >= min_distance)
        largest = weights.double().nan_to_num(0.0).where(counts, 0.0).amax(-1)
        largest = largest if query_words is None else largest[query_words[rows]]
        yield float(largest.mean()) if len(largest) else 0.0


def _word_masks(
    m: AttentionMap | AttentionSummary, offset: int, *, cross: bool
) -> tuple[Bool[Tensor, " queries"], Bool[Tensor, " keys"]]:
    """Which queries and which keys are words: not the first token, not delimiters, not padding."""
    queries, keys = m.shape[2:]
    query_words, key_words = (torch.ones(n, dtype=torch.bool, device=m.device) for n in (queries, keys))
    first = 0
    if not cross and isinstance(m, AttentionMap) and m.mask is not None:
        # A query that may not attend to itself is padding, unless no query may.
        at = torch.arange(queries, device=m.device)
        zero = torch.zeros_like(at)
        own = m.mask.predicate(queries, keys, m.device)(zero, zero, at, at + offset).expand(queries)
        if bool(own.any()):
            query_words &= own
            first = int(own.to(torch.uint8).argmax()) if offset == 0 else 0
    key_words[first] = False
    if m.tokens is not None:
        for words, tokens in zip((query_words, key_words), m.tokens, strict=True):
            words &= torch.tensor([not is_delimiter(token) for token in text_tokens(tokens, 0)], device=m.device)
    return (query_words if cross else query_words & key_words[offset:]), key_words
