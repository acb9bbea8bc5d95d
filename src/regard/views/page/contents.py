"""What a page says of a recording: the texts, and every attention and head of it, as static/data.js reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.lens.entry import Entry, is_one
from regard.lens.kinds import Kinds, is_delimiter, kinds_of
from regard.lens.map import AttentionMap, Tokens
from regard.lens.one import one_text
from regard.lens.recording import Recording
from regard.lens.summary import CELLS, Summary

__all__ = ["THUMBNAIL", "Texts", "Told", "groups_of", "read"]

THUMBNAIL = 32
"""The picture of a head that is carried whole has at most so many rows and columns."""

PAIRS = 12
"""So many of a head's strongest pairs of tokens are told."""


@dataclass
class Told:
    """One attention, and what is told of it whatever else is carried."""

    path: str
    entry: Entry
    made: AttentionMap | Summary
    """Of one text."""
    batch: int
    """Which row of `made` the text is; 0 in a map, which was cut down to it."""
    facts: dict[str, Any]
    """What static/data.js calls Attention, without what is carried."""

    def picture(self, cells: int) -> Tensor:
        """(heads, rows, columns): the map in at most so many rows and columns."""
        queries, keys = self.made.shape[2:]
        most = min(cells, CELLS) if isinstance(self.made, Summary) else cells
        return self.made.pooled(min(most, queries), min(most, keys))[self.batch]


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
        """As static/data.js reads them."""
        return [{"tokens": [_sound(token) for token in tokens]} for tokens in self._numbers]


def groups_of(recording: Recording) -> dict[str, str]:
    """The name of the group of attentions that each path belongs to: encoder, decoder, cross; one layer of it each."""
    stacks: dict[tuple[str, str], list[str]] = {}
    for path in recording:
        entry = recording.about(path)
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
        IndexError: no such batch row.
    """
    entry = recording.about(path)
    whole = entry.map()
    if not 0 <= batch < whole.shape[0]:
        raise IndexError(f"batch={batch}: the recording has {whole.shape[0]} texts, counted from 0")
    made: AttentionMap | Summary = whole
    if isinstance(whole, AttentionMap):
        whole.ready()
        made, row = one_text(whole, batch), 0
        # What a model knows of its tokens is worth the most with the kinds that need them.
        kinds = kinds_of(made, cross=entry.kind == "cross")
    else:
        row, kinds = batch, whole.kinds()
    _, heads, queries, keys = made.shape
    cross = entry.kind == "cross" or queries > keys
    tokens = made.tokens
    looks = texts.number(_of_text(tokens and tokens[0], row), queries)
    seen = texts.number(_of_text(tokens and tokens[1], row), keys)
    entropy, far = made.entropy()[row].mean(-1), made.distance().mean[row].mean(-1)
    numbers = range(heads) if entry.heads is None else entry.heads
    pairs = _pairs(made, row, texts.tokens(seen), own=None if cross else keys - queries)
    error = None if math.isnan(made.error) else made.error
    facts = {
        "path": path,
        "group": group,
        "kind": entry.kind or "self",
        "layer": entry.layer or 0,
        "queries": queries,
        "keys": keys,
        "first": 0 if cross else keys - queries,
        "queryText": looks,
        "keyText": seen,
        "mask": entry.mask,
        "kernel": entry.kernel,
        "error": error,
        "trusted": made.trusted,
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
                "sink": _scores(kinds, head)["first token"],
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
    return Told(path, entry, made, row, facts)


def _sound(token: str) -> str:
    """A token without halves of characters, which no file can hold."""
    return token.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _of_text(tokens: Tokens | None, batch: int) -> list[str] | None:
    if not tokens:
        return None
    return tokens if is_one(tokens) else tokens[batch]  # type: ignore[return-value]


def _scores(kinds: Kinds, head: int) -> dict[str, float | None]:
    """How much of each kind a head has; None where no row could show it."""
    scores = {}
    for name, score in kinds.scores.items():
        own = math.nan if score is None else float(score[head])
        scores[name] = None if math.isnan(own) else own
    return scores


def _pairs(
    made: AttentionMap | Summary, batch: int, tokens: Sequence[str], own: int | None
) -> list[list[dict[str, Any]]]:
    """The strongest pairs of each head: not the first token, not what ends something, and not a token with itself."""
    found = made.top(min(4, made.shape[3]))
    weights, keys = found.weights[batch].cpu(), found.keys[batch].cpu()
    rests = torch.tensor([key == 0 or is_delimiter(token) for key, token in enumerate(tokens)] + [True])
    no = rests[keys]  # a key of -1, where there are no more, is the last
    if own is not None:
        no |= keys == torch.arange(keys.shape[1])[:, None] + own
    flat = weights.masked_fill(no, -1.0).flatten(1)
    best = flat.topk(min(PAIRS, flat.shape[1]))
    return [
        [
            {"query": place // keys.shape[2], "key": int(keys[head].flatten()[place]), "weight": weight}
            for weight, place in zip(best.values[head].tolist(), best.indices[head].tolist(), strict=True)
            if weight > 0
        ]
        for head in range(len(keys))
    ]
