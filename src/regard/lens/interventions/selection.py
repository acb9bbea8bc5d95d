"""The heads, batch rows, queries and keys that an edit names, found in one attention call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Index = int | slice | Sequence[int]
"""As in a list: a number (negative from the end), a slice, or several numbers."""


def find_indices(index: Index | None, count: int, what: str, path: str) -> list[int]:
    """The numbers from 0 to count - 1 that an index names; all of them for None.

    Args:
        index: the index.
        count: how many there are.
        what: what is counted, in the singular: "head".
        path: the attention, for the message.

    Raises:
        IndexError: it names none, or one that is not there.
    """
    if index is None:
        return list(range(count))
    if isinstance(index, slice):
        numbers = list(range(count))[index]
    else:
        numbers = [index] if isinstance(index, int) else list(index)
    for n in numbers:
        if not -count <= n < count:
            raise IndexError(f"{path}: there is no {what} {n}: it has {count}, 0 to {count - 1}")
    if not numbers:
        raise IndexError(f"{path}: {format_index(index)} names no {what}: it has {count}, 0 to {count - 1}")
    return sorted({n % count for n in numbers})


def format_index(index: Index | None) -> str:
    """The index as it was written: ``4``, ``[1, 2]``, ``:3``."""
    if isinstance(index, slice):
        ends = ["" if end is None else str(end) for end in (index.start, index.stop, index.step)]
        return ":".join(ends[: 2 + (index.step is not None)])
    return str(index if isinstance(index, int) or index is None else list(index))


def check_index(index: object, what: str) -> Index:
    """An index of a user.

    Raises:
        TypeError: no number, slice or list of numbers.
    """
    if isinstance(index, slice) or _is_number(index):
        return index  # type: ignore[return-value]
    numbers = index.tolist() if hasattr(index, "tolist") else index
    if isinstance(numbers, Sequence) and not isinstance(numbers, str) and all(map(_is_number, numbers)):
        return tuple(numbers)
    raise TypeError(f"{what}[{index!r}]: a number counted from 0, a slice or a list of numbers, such as {what}[[0, 3]]")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class CallPositions:
    """Where the queries and keys of one call stand in the sequence: with a cache, a call has the last queries only."""

    num_queries: int
    num_keys: int
    first_query: int = 0
    """The position of the first query."""
    first_key: int = 0
    """The position of the first key: above 0 where the cache of a window dropped keys."""
    end_key: int = 0
    """The position behind the last key that is written; a cache may hold room behind it."""

    @property
    def is_whole(self) -> bool:
        """Whether the keys are the positions from 0 on, without room behind them."""
        return self.first_key == 0 and self.end_key == self.num_keys

    def rows(self, queries: Sequence[int] | None) -> list[int]:
        """The rows of this call at these positions; a negative number counts from the last query of the call."""
        if queries is None:
            return list(range(self.num_queries))
        rows = {n + self.num_queries if n < 0 else n - self.first_query for n in queries}
        return sorted(row for row in rows if 0 <= row < self.num_queries)

    def columns(self, keys: Sequence[int] | None) -> tuple[list[int], list[int]]:
        """The columns of this call at these positions, and the positions that no key of it has yet.

        A negative number counts from the last key that is written.
        """
        if keys is None:
            return list(range(self.num_keys)), []
        columns, missing = set(), []
        for key in keys:
            column = (self.end_key + key if key < 0 else key) - self.first_key
            if column >= self.num_keys or (key < 0 and self.end_key + key < 0):
                missing.append(key)
            elif column >= 0:
                columns.add(column)
        return sorted(columns), missing


@dataclass(frozen=True)
class CallPart:
    """Some batch rows and heads of one call."""

    batch: Sequence[int]
    heads: Sequence[int]
    batch_size: int
    """The number of batch rows of the whole call."""
