"""Packed documents: several in one row of tokens, each of which sees itself and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard._shapes import Bool, Int
from regard.attention.mask.base import Mask, Predicate, Tile, TileBounds, TileGrid
from regard.attention.mask.kinds import integers, short

__all__ = ["DocumentRun", "Documents", "documents"]


def documents(
    ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    keys: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
) -> Mask:
    """Several documents in one row of tokens: tokens of one document see one another and nothing else.

    Packed training adds ``& causal()``. With fewer queries than keys the queries are the last tokens.

    With keys, the queries are other tokens than the keys: in cross-attention over packed pairs, a target's tokens see
    those of their own source. The mask is then for exactly these queries and keys. A document that has tokens on one
    side only sees nothing, or is seen by nobody.

    Documents that lie in one piece, as packing leaves them, are computed each by itself, and documents of one length
    side by side are computed together: many short ones are fastest sorted by length.

    Args:
        ids: which document each token belongs to, ``(tokens,)`` or ``(batch, tokens)``; with keys, each query.
        keys: which document each key belongs to, ``(keys,)`` or ``(batch, keys)``; in any order.
    """
    ids = _checked("ids", ids)
    if keys is None:
        return Documents(ids)
    keys = _checked("keys", keys)
    if ids.ndim == keys.ndim == 2 and len(ids) != len(keys):
        raise ValueError(f"documents(ids, keys): the ids are of {len(ids)} batch rows, the keys of {len(keys)}")
    return Documents(ids, keys)


class DocumentRun(NamedTuple):
    """Documents of one length side by side: the first's queries and keys as (start, stop), and how many there are."""

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
        ids, of_keys = self.ids.to(device), self._key_ids.to(device)
        first = self._first(tile.queries, tile.keys)
        # A query before the first key belongs to no document.
        outside = max(0, -(tile.rows[0] + first))
        query = ids[..., max(0, tile.rows[0] + first) : max(0, tile.rows[1] + first)]
        key = of_keys[..., slice(*tile.columns)]
        same = query[..., :, None] == key[..., None, :]
        if outside:
            same = torch.nn.functional.pad(same, (0, 0, min(outside, tile.rows[1] - tile.rows[0]), 0))
        return same if same.ndim == 2 else same[:, None]

    def predicate(self, queries: int, keys: int, device: torch.device | str | None = None) -> Predicate:
        device = device or self.ids.device
        ids, of_keys, first = self.ids.to(device), self._key_ids.to(device), self._first(queries, keys)
        return lambda b, h, i, j: self._same(ids, of_keys, b, i + first, j)

    def _same(self, ids: Tensor, of_keys: Tensor, b: Tensor, query: Tensor, key: Tensor) -> Tensor:
        known = query.clamp(min=0)  # a query before the first key belongs to no document, and has no id to look up
        of_query = ids[known] if ids.ndim == 1 else ids[b, known]
        return (of_query == (of_keys[key] if of_keys.ndim == 1 else of_keys[b, key])) & (query >= 0)

    def bounds(self, grid: TileGrid) -> TileBounds:
        # By the smallest and the largest id of a tile: exact for documents in one piece with rising ids, and never
        # wrong for others. A query before the first key counts as the first key's.
        first = self._first(grid.queries, grid.keys)
        query_low, query_high = _extremes(
            self.ids.cpu(),
            (grid.first_queries[:, 0] + first).clamp(min=0),
            (grid.last_queries[:, 0] + first).clamp(min=0),
        )
        low, high = _extremes(self._key_ids.cpu(), grid.first_keys, grid.last_keys)
        query_low, query_high = query_low[..., :, None], query_high[..., :, None]
        low, high = low[..., None, :], high[..., None, :]
        some = (query_low <= high) & (low <= query_high)
        every = (query_low == query_high) & (low == high) & (query_low == low)
        every = every & (grid.first_queries + first >= 0)
        return TileBounds(some, every) if some.ndim == 2 else TileBounds(some[:, None], every[:, None])

    def validate(self, queries: int, keys: int) -> None:
        if self._key_ids.shape[-1] != keys:
            raise ValueError(f"{self!r} speaks of {self._key_ids.shape[-1]} tokens, but there are {keys} keys")
        if self.keys is not None and self.ids.shape[-1] != queries:
            raise ValueError(f"{self!r} speaks of {self.ids.shape[-1]} queries, but there are {queries}")

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        each = [len(t) for t in (self.ids, self._key_ids) if t.ndim == 2]
        return each[0] if each else None

    @property
    def shape(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return None if self.keys is None else self.ids.shape[-1], self._key_ids.shape[-1]

    def runs(self) -> list[list[DocumentRun] | None]:
        """The documents of each batch row, of all alike if none is spoken of; None for one whose are in several pieces.

        They are found once for all calls: a model has many layers.
        """
        ids, keys, found = self._found
        if not (torch.equal(ids, self.ids) and torch.equal(keys, self._key_ids)):  # somebody wrote into them
            del self.__dict__["_found"]
            return self.runs()
        return found

    @cached_property
    def _found(self) -> tuple[Tensor, Tensor, list[list[DocumentRun] | None]]:
        ids, keys = self.ids.clone(), self._key_ids.clone()
        rows = 1 if self.batch_size is None else self.batch_size
        queries = [_pieces(row) for row in ids.cpu().expand(rows, ids.shape[-1])]
        of_keys = queries if self.keys is None else [_pieces(row) for row in keys.cpu().expand(rows, keys.shape[-1])]
        return ids, keys, [_runs(*both) for both in zip(queries, of_keys, strict=True)]

    @property
    def _key_ids(self) -> Tensor:
        return self.ids if self.keys is None else self.keys

    def _first(self, queries: int, keys: int) -> int:
        """The place of query 0 among the ids."""
        return keys - queries if self.keys is None else 0

    def __repr__(self) -> str:
        return f"documents({short(self.ids)}{'' if self.keys is None else f', keys={short(self.keys)}'})"


def _checked(what: str, given: object) -> Int[Tensor, "*batch tokens"]:
    ids = integers("documents", what, given)
    if ids.ndim not in (1, 2):
        each, shape = (
            ("token", "(tokens,) or (batch, tokens)") if what == "ids" else ("key", "(keys,) or (batch, keys)")
        )
        raise ValueError(f"documents({what}) wants one id per {each}, shape {shape}; got shape {tuple(ids.shape)}")
    return ids


def _pieces(ids: Int[Tensor, " tokens"]) -> dict[int, tuple[int, int]] | None:
    """Where each document of one row of tokens begins and ends; None if one of them does not lie in one piece."""
    values, lengths = torch.unique_consecutive(ids, return_counts=True)
    stops = lengths.cumsum(0).tolist()
    pieces = dict(zip(values.tolist(), zip([0, *stops[:-1]], stops, strict=True), strict=True)) if stops else {}
    return pieces if len(pieces) == len(stops) else None


def _runs(
    queries: dict[int, tuple[int, int]] | None, keys: dict[int, tuple[int, int]] | None
) -> list[DocumentRun] | None:
    """The documents that stand on both sides, neighbours of one length together."""
    if queries is None or keys is None:
        return None
    runs: list[DocumentRun] = []
    for document, rows in queries.items():
        if document not in keys:
            continue
        columns = keys[document]
        if runs:
            last, height, width = runs[-1], rows[1] - rows[0], columns[1] - columns[0]
            alike = (last.queries[0] + last.num_documents * height, last.keys[0] + last.num_documents * width)
            same = last.queries[1] - last.queries[0] == height and last.keys[1] - last.keys[0] == width
            if same and alike == (rows[0], columns[0]):
                runs[-1] = last._replace(num_documents=last.num_documents + 1)
                continue
        runs.append(DocumentRun(rows, columns, 1))
    return runs


def _extremes(ids: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest id of some spans of tokens."""
    spans = [ids[..., a : b + 1] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    if not spans or not ids.shape[-1]:
        nothing = ids.new_zeros(*ids.shape[:-1], len(spans))
        return nothing, nothing
    return torch.stack([span.amin(-1) for span in spans], -1), torch.stack([span.amax(-1) for span in spans], -1)
