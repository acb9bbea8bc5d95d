"""Packed documents: several documents in one row of tokens; tokens see their own document only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Int
from regard.attention.mask.base import Mask
from regard.attention.mask.geometry import Predicate, Tile, TileBounds, TileGrid
from regard.attention.mask.kinds import integers, short


def documents(
    ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    keys: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
) -> Mask:
    """Several documents in one row of tokens: tokens of one document see one another and nothing else.

    Packed training adds ``& causal()``. With fewer queries than keys the queries are the last tokens.

    With keys, queries and keys are different tokens: in cross-attention over packed pairs, the tokens of a target see
    those of their own source. The mask is then for exactly these queries and keys. A document without keys sees
    nothing, and a document without queries is seen by no query.

    Packing leaves each document in one piece. Such documents are computed one by one, and neighbours of one length
    together: many short documents are fastest when they are sorted by length.

    Args:
        ids: the document of each token, ``(tokens,)`` or ``(batch, tokens)``; with keys, of each query.
        keys: the document of each key, ``(keys,)`` or ``(batch, keys)``; in any order.
    """
    ids = _checked_ids("ids", ids)
    if keys is None:
        return Documents(ids)
    keys = _checked_ids("keys", keys)
    if ids.ndim == keys.ndim == 2 and len(ids) != len(keys):
        raise ValueError(f"documents(ids, keys): the ids have {len(ids)} batch rows, the keys have {len(keys)}")
    return Documents(ids, keys)


class DocumentRun(NamedTuple):
    """Neighbouring documents of one length: the (start, stop) of the first one, and how many there are."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    num_documents: int


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """See `documents`."""

    ids: Tensor
    keys: Tensor | None = None

    def evaluate(self, tile: Tile) -> Bool[Tensor, "*batch_heads #rows #columns"]:
        device = tile.device or self.ids.device
        ids, key_ids = self.ids.to(device), self._key_ids.to(device)
        first = self._query_offset(tile.queries, tile.keys)
        # A query before the first key belongs to no document.
        num_outside = max(0, -(tile.rows[0] + first))
        query = ids[..., max(0, tile.rows[0] + first) : max(0, tile.rows[1] + first)]
        key = key_ids[..., slice(*tile.columns)]
        same = query[..., :, None] == key[..., None, :]
        if num_outside:
            same = torch.nn.functional.pad(same, (0, 0, min(num_outside, tile.rows[1] - tile.rows[0]), 0))
        return same if same.ndim == 2 else same[:, None]

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        device = device or self.ids.device
        ids, key_ids, first = self.ids.to(device), self._key_ids.to(device), self._query_offset(queries, keys)
        return lambda b, h, i, j: self._same_document(ids, key_ids, b, i + first, j)

    def _same_document(self, ids: Tensor, key_ids: Tensor, b: Tensor, query: Tensor, key: Tensor) -> Tensor:
        place = query.clamp(min=0)  # a query before the first key belongs to no document, and has no id to look up
        query_id = ids[place] if ids.ndim == 1 else ids[b, place]
        return (query_id == (key_ids[key] if key_ids.ndim == 1 else key_ids[b, key])) & (query >= 0)

    def bounds(self, grid: TileGrid) -> TileBounds:
        # By the smallest and the largest id of a tile: exact for documents in one piece with rising ids, and never
        # wrong for others. A query before the first key is treated as the first key.
        first = self._query_offset(grid.queries, grid.keys)
        query_low, query_high = _extremes(
            self.ids.cpu(),
            (grid.first_queries[:, 0] + first).clamp(min=0),
            (grid.last_queries[:, 0] + first).clamp(min=0),
        )
        low, high = _extremes(self._key_ids.cpu(), grid.first_keys, grid.last_keys)
        query_low, query_high = query_low[..., :, None], query_high[..., :, None]
        low, high = low[..., None, :], high[..., None, :]
        any_allowed = (query_low <= high) & (low <= query_high)
        all_allowed = (query_low == query_high) & (low == high) & (query_low == low)
        all_allowed = all_allowed & (grid.first_queries + first >= 0)
        if any_allowed.ndim == 2:
            return TileBounds(any_allowed, all_allowed)
        return TileBounds(any_allowed[:, None], all_allowed[:, None])

    def validate(self, queries: int, keys: int) -> None:
        if self._key_ids.shape[-1] != keys:
            raise ValueError(f"{self!r} is for {self._key_ids.shape[-1]} tokens, but there are {keys} keys")
        if self.keys is not None and self.ids.shape[-1] != queries:
            raise ValueError(f"{self!r} is for {self.ids.shape[-1]} queries, but there are {queries}")

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        sizes = [len(t) for t in (self.ids, self._key_ids) if t.ndim == 2]
        return sizes[0] if sizes else None

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return None if self.keys is None else self.ids.shape[-1], self._key_ids.shape[-1]

    def runs(self) -> list[list[DocumentRun] | None]:
        """The documents of each batch row, or one entry for all rows; None where a document is not in one piece.

        They are found once for all calls: a model has many layers.
        """
        ids, keys, runs = self._cached_runs
        if not (torch.equal(ids, self.ids) and torch.equal(keys, self._key_ids)):  # they were changed in place
            del self.__dict__["_cached_runs"]
            return self.runs()
        return runs

    @cached_property
    def _cached_runs(self) -> tuple[Tensor, Tensor, list[list[DocumentRun] | None]]:
        ids, keys = self.ids.clone(), self._key_ids.clone()
        rows = 1 if self.batch_size is None else self.batch_size
        query_spans = [_spans(row) for row in ids.cpu().expand(rows, ids.shape[-1])]
        key_spans = query_spans
        if self.keys is not None:
            key_spans = [_spans(row) for row in keys.cpu().expand(rows, keys.shape[-1])]
        return ids, keys, [_runs(*both) for both in zip(query_spans, key_spans, strict=True)]

    @property
    def _key_ids(self) -> Tensor:
        return self.ids if self.keys is None else self.keys

    def _query_offset(self, queries: int, keys: int) -> int:
        """The position of query 0 among the ids."""
        return keys - queries if self.keys is None else 0

    def __repr__(self) -> str:
        return f"documents({short(self.ids)}{'' if self.keys is None else f', keys={short(self.keys)}'})"


def _checked_ids(name: str, argument: object) -> Int[Tensor, "*batch tokens"]:
    ids = integers("documents", name, argument)
    if ids.ndim not in (1, 2):
        token, axis = ("token", "tokens") if name == "ids" else ("key", "keys")
        raise ValueError(
            f"documents({name}) wants one id per {token}, shape ({axis},) or (batch, {axis}); "
            f"got shape {tuple(ids.shape)}"
        )
    return ids


def _spans(ids: Int[Tensor, " tokens"]) -> dict[int, tuple[int, int]] | None:
    """The (start, stop) of each document in one row of tokens; None if a document is not in one piece."""
    values, lengths = torch.unique_consecutive(ids, return_counts=True)
    stops = lengths.cumsum(0).tolist()
    spans = dict(zip(values.tolist(), zip([0, *stops[:-1]], stops, strict=True), strict=True)) if stops else {}
    return spans if len(spans) == len(stops) else None


def _runs(
    queries: dict[int, tuple[int, int]] | None, keys: dict[int, tuple[int, int]] | None
) -> list[DocumentRun] | None:
    """The documents that have queries and keys, neighbours of one length together."""
    if queries is None or keys is None:
        return None
    runs: list[DocumentRun] = []
    for document, rows in queries.items():
        if document not in keys:
            continue
        columns = keys[document]
        if runs:
            last, height, width = runs[-1], rows[1] - rows[0], columns[1] - columns[0]
            next_starts = (last.queries[0] + last.num_documents * height, last.keys[0] + last.num_documents * width)
            same_lengths = last.queries[1] - last.queries[0] == height and last.keys[1] - last.keys[0] == width
            if same_lengths and next_starts == (rows[0], columns[0]):
                runs[-1] = last._replace(num_documents=last.num_documents + 1)
                continue
        runs.append(DocumentRun(rows, columns, 1))
    return runs


def _extremes(ids: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest id of each span from a first to a last token."""
    spans = [ids[..., a : b + 1] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    if not spans or not ids.shape[-1]:
        nothing = ids.new_zeros(*ids.shape[:-1], len(spans))
        return nothing, nothing
    return torch.stack([span.amin(-1) for span in spans], -1), torch.stack([span.amax(-1) for span in spans], -1)
