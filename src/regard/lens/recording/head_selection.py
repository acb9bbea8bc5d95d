"""Which head of a model is worth seeing first: one that looks from word to word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard._shapes import Bool
from regard.lens.maps.head_types import is_delimiter
from regard.lens.maps.map import AttentionMap, Tokens
from regard.lens.maps.prepared import no_grad_no_autocast
from regard.lens.maps.summary import TOP, AttentionSummary
from regard.lens.recording.entry import RecordingEntry, is_single_text
from regard.lens.recording.recording import Recording

__all__ = ["most_informative_head", "resolve_heads"]

FEW, MANY, WEIGHTS = 16, 64, 2**14
"""Of each head at most as many rows are looked at as make so many weights, within these bounds."""

TOGETHER = 2**22
"""So many weights are computed at a time."""


@no_grad_no_autocast
def most_informative_head(recording: Recording) -> tuple[str, int]:
    """The attention, and the head of it, that are worth seeing first.

    It is the head whose rows give most to one other word, on average over the rows: the largest weight on a token that
    is not the query's own nor beside it, since a head that looks at neighbours does so whatever they mean, and neither
    the first token nor a delimiter, on which heads rest. Where no head gives anything to such a token, any other than
    the query's own counts, and then any.

    Of a batch, the first text is looked at. Of a map some rows are computed, evenly spread, so that it costs little at
    any length; a summary is asked for the keys that it kept.

    Returns:
        The path, and the head among those that the map has.

    Raises:
        ValueError: no attention here has a weight above 0.
    """
    for near, words in ((1, True), (0, False), (-1, False)):
        best, chosen = 0.0, None
        for path in recording:
            for head, share in enumerate(_shares(recording.entry(path), near, words=words)):
                if share > best:
                    best, chosen = share, (path, head)
        if chosen is not None:
            return chosen
    raise ValueError(f"there is no head to choose: no attention in {recording!r} has a weight above 0")


def resolve_heads(recording: Recording, heads: Sequence[tuple[str | int, int]]) -> list[tuple[str, int]]:
    """The attentions and heads that somebody names.

    Args:
        recording: where they are looked for.
        heads: (path or layer, head), the numbers those of the model; a layer's number stands for that layer of each
            stack.

    Returns:
        Paths, and places among the heads that each map has.

    Raises:
        TypeError: something else.
        KeyError: no such path or layer.
        IndexError: no such head.
    """
    found: list[tuple[str, int]] = []
    if not isinstance(heads, list | tuple):
        raise TypeError(f"heads={heads!r}: a list of (layer or path, head), such as [(3, 5), (4, 0)]")
    for one in heads:
        sound = isinstance(one, tuple | list) and len(one) == 2 and not any(isinstance(each, bool) for each in one)
        if not sound or not isinstance(one[0], str | int) or not isinstance(one[1], int):
            raise TypeError(f"{one!r} in heads: (layer or path, head), such as (3, 5)")
        where, number = one
        paths = [path for path in recording if where in (path, recording.entry(path).layer)]
        if not paths:
            layers = sorted({entry.layer for path in recording if (entry := recording.entry(path)).layer is not None})
            raise KeyError(
                f"there is no layer {where!r} here; there is {', '.join(map(str, layers)) or list(recording)}"
            )
        for path in paths:
            entry = recording.entry(path)
            numbers = list(range(entry.shape[1]) if entry.heads is None else entry.heads)
            if number not in numbers:
                raise IndexError(f"{path} has no head {number}; it has {', '.join(map(str, numbers))}")
            found.append((path, numbers.index(number)))
    return found


def _shares(entry: RecordingEntry, near: int, *, words: bool) -> Iterator[float]:
    """For each head, the mean over its rows of the largest weight that counts."""
    m = entry.map()
    _, heads, queries, keys = m.shape
    if 0 in m.shape:
        return
    cross = entry.kind == "cross" or queries > keys
    offset = 0 if cross else keys - queries
    step = -(-queries // min(MANY, max(FEW, WEIGHTS // keys)))
    rows = torch.arange(0, queries, step, device=m.device)
    looks, counts = _tokens(m, offset, cross=cross) if words else (None, None)
    top = m.top(min(TOP, keys)) if isinstance(m, AttentionSummary) else None
    together = max(1, TOGETHER // (len(rows) * keys))
    for head in range(heads):
        if top is not None:
            weights, at = top.weights[0, head, rows], top.keys[0, head, rows]
        else:
            if head % together == 0:
                some = m[0, head : head + together, ::step]
            weights, at = some[head % together], torch.arange(keys, device=m.device).expand(len(rows), -1)
        open_ = torch.ones_like(at, dtype=torch.bool) if counts is None else counts[at]
        if not cross:
            open_ = open_ & ((at - offset - rows[:, None]).abs() > near)
        largest = weights.double().nan_to_num(0.0).where(open_, 0.0).amax(-1)
        largest = largest if looks is None else largest[looks[rows]]
        yield float(largest.mean()) if len(largest) else 0.0


def _tokens(
    m: AttentionMap | AttentionSummary, offset: int, *, cross: bool
) -> tuple[Bool[Tensor, " queries"], Bool[Tensor, " keys"]]:
    """Which queries and which keys are words: not the first token, not delimiters, not padding."""
    queries, keys = m.shape[2:]
    looks, counts = (torch.ones(n, dtype=torch.bool, device=m.device) for n in (queries, keys))
    first = 0
    if not cross and isinstance(m, AttentionMap) and m.mask is not None:
        # A query that may not attend to itself is padding, unless none may.
        at = torch.arange(queries, device=m.device)
        zero = torch.zeros_like(at)
        own = m.mask.predicate(queries, keys, m.device)(zero, zero, at, at + offset).expand(queries)
        if bool(own.any()):
            looks &= own
            first = int(own.to(torch.uint8).argmax()) if offset == 0 else 0
    counts[first] = False
    if m.tokens is not None:
        for side, text in zip((looks, counts), map(_first_text, m.tokens), strict=True):
            side &= torch.tensor([not is_delimiter(token) for token in text], device=m.device)
    return (looks if cross else looks & counts[offset:]), counts


def _first_text(tokens: Tokens) -> list[str]:
    return tokens if is_single_text(tokens) else tokens[0]  # type: ignore[return-value]
