"""What a page says of a recording: the texts, and every attention and head of it, as static/core/data.js reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.lens.maps.head_types import HeadTypes, detect_heads, is_delimiter
from regard.lens.maps.map import AttentionMap
from regard.lens.maps.summary import SUMMARY_TOP_K, AttentionSummary
from regard.lens.maps.tokens import Tokens, text_tokens
from regard.lens.recording.entry import RecordingEntry
from regard.lens.recording.recording import Recording
from regard.views.html.map_facts import Answers

__all__ = ["THUMBNAIL", "Texts", "Told", "groups_of", "read"]

THUMBNAIL = 32
"""The picture of a head that is carried whole has at most so many rows and columns."""

PAIRS = 12
"""So many of a head's strongest pairs of tokens are told."""


@dataclass
class Told:
    """One attention, and what is told of it whatever else is carried."""

    path: str
    entry: RecordingEntry
    made: AttentionMap | AttentionSummary
    """A map is of one text."""
    answers: Answers
    facts: dict[str, Any]
    """What static/core/data.js calls Attention, without what is carried."""


class Texts:
    """The texts of a page, each once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def number(self, tokens: Sequence[str] | None, count: int) -> int:
        """Which text this is; positions, where nobody said what stands there."""
        known = tuple(str(place) for place in range(count)) if tokens is None else tuple(tokens)
        return self._numbers.setdefault(known, len(self._numbers))

    def tokens(self, number: int) -> tuple[str, ...]:
        """The tokens of a text."""
        return list(self._numbers)[number]

    def facts(self) -> list[dict[str, Any]]:
        """As static/core/data.js reads them."""
        return [{"tokens": tokens} for tokens in self._numbers]


def groups_of(recording: Recording) -> dict[str, str]:
    """The name of the group of attentions that each path belongs to: encoder, decoder, cross; one layer of it each."""
    stacks: dict[tuple[str, str], list[str]] = {}
    for path in recording:
        entry = recording.entry(path)
        stacks.setdefault((entry.stack, entry.kind), []).append(path)
    said = {(stack, kind): _plainly(stack, kind) for stack, kind in stacks}
    names = list(said.values())
    return {
        path: said[key] if names.count(said[key]) == 1 else f"{key[1] or 'attention'} of {key[0] or 'the model'}"
        for key, paths in stacks.items()
        for path in paths
    }


def _plainly(stack: str, kind: str) -> str:
    if kind == "cross":
        return "cross"
    parts = stack.partition("#")[0].split(".")
    return next((part for part in reversed(parts) if part in ("encoder", "decoder")), "self")


def read(recording: Recording, path: str, group: str, batch: int, texts: Texts) -> Told:
    """Ask one attention what is told of it.

    Raises:
        RuntimeError: its tensors were changed since the model ran.
        ValueError: it has no queries or no keys; NaN or infinity in it.
        IndexError: no such batch row.
    """
    entry = recording.entry(path)
    if 0 in entry.shape:
        raise ValueError(f"there is nothing in a map of shape {entry.shape} (batch, heads, queries, keys)")
    made, row = entry.map(), batch
    if isinstance(made, AttentionMap):
        made, row = made.select(batch), 0
    kinds = made.head_types() if isinstance(made, AttentionSummary) else detect_heads(made, cross=entry.kind == "cross")
    _, heads, queries, keys = made.shape
    cross = entry.kind == "cross" or queries > keys
    first = 0 if cross else keys - queries
    tokens = made.tokens
    seen = texts.number(_of_text(tokens and tokens[1], row), keys)
    # Without tokens, queries are the last positions, and are called what these are called as keys.
    looks = texts.number(_of_text(tokens and tokens[0], row), queries) if tokens or cross else seen
    answers = Answers(made, row)
    entropy, far = answers.entropy().mean(-1), answers.distance(first).mean(-1)
    if not bool((entropy.isfinite() & far.isfinite()).all()):
        raise ValueError("its weights are not finite")
    numbers = range(heads) if entry.heads is None else entry.heads
    pairs = _pairs(answers, texts.tokens(seen), own=None if cross else first)
    facts = {
        "path": path,
        "group": group,
        "kind": entry.kind or "self",
        "layer": entry.layer or 0,
        "queries": queries,
        "keys": keys,
        "first": first,
        "queryText": looks,
        "keyText": seen,
        "mask": entry.mask,
        "kernel": entry.kernel,
        "error": made.error if math.isfinite(made.error) else None,
        "verified": made.verified,
        "within": 0.0,
        "scale": 1.0,
        "softcap": None,
        "dropout": 0.0,
        "width": 0,
        "valueWidth": 0,
        "low": None,
        "high": None,
        "kv": [],
        "heads": [
            {
                "number": numbers[head],
                "kind": kinds.names[head],
                "scores": _scores(kinds, head),
                "entropy": float(entropy[head]),
                "distance": None if cross else float(far[head]),
                "sink": _scores(kinds, head)["attention sink"],
                "pairs": pairs[head],
                "picture": None,
                "most": 0.0,
                "carried": None,
            }
            for head in range(heads)
        ],
    }
    if isinstance(made, AttentionMap):
        facts |= {
            "scale": float(made.scale),
            "softcap": None if made.softcap is None else float(made.softcap),
            "dropout": float(made.dropout),
            "width": made.q.shape[-1],
            "valueWidth": 0 if made.v is None else made.v.shape[-1],
        }
    return Told(path, entry, made, answers, facts)


def _of_text(tokens: Tokens | None, batch: int) -> list[str] | None:
    return text_tokens(tokens, batch) if tokens else None


def _scores(kinds: HeadTypes, head: int) -> dict[str, float | None]:
    """How much of each kind a head has; None where no row could show it."""
    scores = {}
    for name, score in kinds.scores.items():
        own = math.nan if score is None else float(score[head])
        scores[name] = None if math.isnan(own) else own
    return scores


def _pairs(answers: Answers, tokens: Sequence[str], own: int | None) -> list[list[dict[str, Any]]]:
    """The strongest pairs of each head: not the first token, not what ends something, and not a token with itself."""
    found = answers.top(min(SUMMARY_TOP_K, len(tokens)))
    weights, keys = found.weights.cpu(), found.keys.cpu()
    rests = torch.tensor([key == 0 or is_delimiter(token) for key, token in enumerate(tokens)] + [True])
    no = rests[keys]  # a key of -1, where there are no more, is the last
    if own is not None:
        no |= keys == torch.arange(keys.shape[1])[:, None] + own
    best = weights.masked_fill(no, -1.0).flatten(1).topk(min(PAIRS, weights[0].numel()))
    places = best.indices
    each = (best.values, places // keys.shape[2], keys.flatten(1).gather(1, places))
    return [
        [{"query": query, "key": key, "weight": weight} for weight, query, key in zip(*head, strict=True) if weight > 0]
        for head in zip(*(t.tolist() for t in each), strict=True)
    ]
