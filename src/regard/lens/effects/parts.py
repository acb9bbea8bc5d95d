"""What is removed, one at a time: heads, layers, tokens or edges; each kind writes the edits of some of its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.lens.effects.edits import BlockByRow, ReplaceOutput
from regard.lens.interventions.intervention import Intervention
from regard.lens.recording.entry import RecordingEntry

Index = tuple[int, ...]


class Parts(ABC):
    """The parts of one text's forward pass that are removed."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the effects of this text."""

    @abstractmethod
    def indices(self) -> list[Index]:
        """The index of each part, in order."""

    @abstractmethod
    def write(self, edit: Intervention, parts: Sequence[Index], first_row: int | None) -> None:
        """Write the edits that remove each of some parts in a batch row of its own.

        Args:
            edit: where to write them.
            parts: their indices.
            first_row: the batch row of the first of them; None for a single part, removed in all batch rows.
        """

    @abstractmethod
    def write_all(self, edit: Intervention, parts: Sequence[Index]) -> None:
        """Write the edits that remove some parts together, in all batch rows."""


@dataclass(frozen=True)
class HeadParts(Parts):
    """Every head of every attention; or, `whole`, every attention with all its heads."""

    entries: Sequence[RecordingEntry]
    replacements: Sequence[Tensor | None]
    """For each attention what replaces its output."""
    whole: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Parts`."""
        most = max(entry.shape[1] for entry in self.entries)
        return (len(self.entries),) if self.whole else (len(self.entries), most)

    def indices(self) -> list[Index]:
        """See `Parts`."""
        if self.whole:
            return [(n,) for n in range(len(self.entries))]
        return [(n, head) for n, entry in enumerate(self.entries) for head in range(entry.shape[1])]

    def write(self, edit: Intervention, parts: Sequence[Index], first_row: int | None) -> None:
        """See `Parts`."""
        for n, (attention, *heads) in enumerate(parts):
            path = self.entries[attention].path
            batch = None if first_row is None else first_row + n
            edit[path].add(ReplaceOutput(path, heads[0] if heads else None, batch, self.replacements[attention]))

    def write_all(self, edit: Intervention, parts: Sequence[Index]) -> None:
        """See `Parts`."""
        for attention, entry in enumerate(self.entries):
            heads = None if self.whole else [index[1] for index in parts if index[0] == attention]
            if heads or any(index == (attention,) for index in parts):
                edit[entry.path].add(ReplaceOutput(entry.path, heads, None, self.replacements[attention]))


@dataclass(frozen=True)
class BlockedParts(Parts):
    """Pairs of a query and a key that are blocked, in the heads of some attentions."""

    entries: Sequence[RecordingEntry]
    """All attentions that have the keys."""

    @abstractmethod
    def pairs(self, index: Index, entry: RecordingEntry) -> Tensor:
        """What a part blocks in an attention: ``(queries, keys)``, True where nobody may look."""

    @abstractmethod
    def attentions(self, index: Index) -> Sequence[int]:
        """The attentions that a part blocks, as indices of `entries`."""

    def write(self, edit: Intervention, parts: Sequence[Index], first_row: int | None) -> None:
        """See `Parts`."""
        offset = first_row or 0
        rows = offset + len(parts)
        for n, entry in enumerate(self.entries):
            queries, keys = entry.shape[2:]
            blocked = torch.zeros(rows, queries, keys, dtype=torch.bool)
            for row, index in enumerate(parts, offset):
                if n in self.attentions(index):
                    blocked[row] = self.pairs(index, entry)
            if bool(blocked.any()):
                edit[entry.path].add(BlockByRow(entry.path, None, None, blocked))

    def write_all(self, edit: Intervention, parts: Sequence[Index]) -> None:
        """See `Parts`."""
        for n, entry in enumerate(self.entries):
            pairs = [self.pairs(index, entry) for index in parts if n in self.attentions(index)]
            if pairs:
                blocked = torch.stack(pairs).any(0, keepdim=True)
                edit[entry.path].add(BlockByRow(entry.path, None, None, blocked))


@dataclass(frozen=True)
class TokenParts(BlockedParts):
    """Every token, hidden from all other tokens in every attention; it still attends to itself."""

    positions: Sequence[int]
    """The tokens that are not padding."""
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Parts`."""
        return (self.count,)

    def indices(self) -> list[Index]:
        """See `Parts`."""
        return [(position,) for position in self.positions]

    def attentions(self, index: Index) -> Sequence[int]:
        """See `BlockedParts`."""
        return range(len(self.entries))

    def pairs(self, index: Index, entry: RecordingEntry) -> Tensor:
        """See `BlockedParts`."""
        queries, keys = entry.shape[2:]
        blocked = torch.zeros(queries, keys, dtype=torch.bool)
        blocked[:, index[0]] = True
        if entry.kind != "cross":
            blocked[index[0], index[0]] = False
        return blocked


@dataclass(frozen=True)
class EdgeParts(BlockedParts):
    """Some queries, kept from looking at groups of keys, in windows of attentions."""

    windows: Sequence[Sequence[int]]
    """Of each window the attentions, as indices of `entries`."""
    queries: Sequence[int]
    """Their positions; below 0 from the end."""
    groups: Sequence[Sequence[int]]
    """The keys of each group."""

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Parts`."""
        return (len(self.windows), len(self.queries), len(self.groups))

    def indices(self) -> list[Index]:
        """See `Parts`."""
        windows, queries, groups = self.shape
        return [(w, q, g) for w in range(windows) for q in range(queries) for g in range(groups)]

    def attentions(self, index: Index) -> Sequence[int]:
        """See `BlockedParts`."""
        return self.windows[index[0]]

    def pairs(self, index: Index, entry: RecordingEntry) -> Tensor:
        """See `BlockedParts`."""
        blocked = torch.zeros(entry.shape[2:], dtype=torch.bool)
        blocked[self.queries[index[1]], list(self.groups[index[2]])] = True
        return blocked


def centred_windows(count: int, width: int | None) -> list[list[int]]:
    """Windows of so many layers, one around each layer, cut at both ends (Geva et al. 2023, section 5).

    Args:
        count: the number of layers.
        width: of a window; None for one window of all layers.

    Raises:
        ValueError: a width below 1.
    """
    if width is None:
        return [list(range(count))]
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"window={width!r}: a number of layers from 1 on, or None for all layers at once")
    before = width // 2
    return [list(range(max(0, n - before), min(count, n - before + width))) for n in range(count)]
